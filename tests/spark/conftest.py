"""The Spark session that all tests share: it takes seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.settings import JobSettings
from headrace.spark import register
from headrace.spark.session import get_session
from tests.spark.pipelines import rig

__all__ = ["rig"]

# Workers import what tests add to the engine's tables; they get their path when Spark starts.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    session = get_session(JobSettings(master="local[2,4]", data_dir=folder))
    register(session)
    yield session
    session.stop()
