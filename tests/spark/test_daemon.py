"""The process that workers are forked from has what they need, and no thread that a fork loses."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

_THREADS = """
import os
from headrace.spark.daemon import MODULES, preload
preload()
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc to count threads in")
def test_imports_start_no_thread() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _THREADS],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=environment,
    )
    assert done.stdout.split() == ["1"]


def look(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    loaded = [module for module in ("headrace.spark.source", "pandas") if module in sys.modules]
    daemon = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
    yield pa.RecordBatch.from_pydict({"seen": [*loaded, *daemon]})


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc to look processes up in")
def test_worker_finds_everything_imported_at_its_first_task(spark: SparkSession) -> None:
    rows = spark.range(1).coalesce(1).mapInArrow(look, "seen string").collect()
    seen = {row["seen"] for row in rows}
    assert {"headrace.spark.source", "pandas", "headrace.spark.daemon"} <= seen
