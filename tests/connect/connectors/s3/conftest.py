"""A bucket for each test."""

from __future__ import annotations

import pytest

from tests.connect.servers.s3 import S3Bucket, S3Server


@pytest.fixture
def bucket(storage: S3Server) -> S3Bucket:
    """A bucket that no other test has."""
    return storage.bucket()
