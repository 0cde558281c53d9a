"""Storage for all tests, and a bucket for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connect.servers.s3 import S3Bucket, S3Server, running_s3


@pytest.fixture(scope="session")
def storage() -> Iterator[S3Server]:
    """The storage of this test run."""
    with running_s3() as server:
        yield server


@pytest.fixture
def bucket(storage: S3Server) -> S3Bucket:
    """A bucket that no other test has."""
    return storage.bucket()
