"""Spark in this process, for what plans reads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from headrace.settings import JobSettings
from headrace.spark.session import get_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = JobSettings(master="local[2,4]", data_dir=tmp_path_factory.mktemp("spark"))
    session = get_session(settings)
    yield session
    session.stop()
