"""The session's surroundings."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from headrace.errors import JavaEndedError, JobFailedError
from headrace.protocol.transactions import CommitRecord
from headrace.settings import JobSettings
from headrace.spark import driver, session
from headrace.spark.cluster import Shipment
from headrace.spark.session import sweep_scratch
from headrace.spark.statistics import PlanHandle


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc to look processes up in")
def test_scratch_of_dead_drivers_is_swept_and_that_of_living_ones_stays(tmp_path: Path) -> None:
    living = tmp_path / f"headrace-{os.getpid()}-abc"
    dead = tmp_path / f"headrace-{sys.maxsize}-abc"
    foreign = tmp_path / "headrace-notes"
    for folder in (living, dead, foreign):
        folder.mkdir()
    sweep_scratch(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, foreign])


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc to look processes up in")
def test_scratch_that_another_driver_sweeps_at_the_same_time_is_no_error(tmp_path: Path) -> None:
    names = [f"headrace-{sys.maxsize}-{letter}" for letter in "abc"]
    for name in names:
        (tmp_path / name).mkdir()

    class Swept:
        """A folder whose first entry is gone when it is looked at."""

        def glob(self, pattern: str) -> list[Path]:
            found = sorted(tmp_path.glob(pattern))
            found[0].rmdir()
            return found

    sweep_scratch(cast("Any", Swept()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("before", "raised"), [(False, JobFailedError), (True, JavaEndedError)])
def test_spark_that_has_run_before_and_does_not_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, before: bool, raised: type[JobFailedError]
) -> None:
    def killed(_: SparkConf, __: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(session, "_has_run", before)
    monkeypatch.setattr(session, "launch_quietly", killed)
    with pytest.raises(JobFailedError, match="Spark did not start on local") as failed:
        session._start(SparkConf(loadDefaults=False), JobSettings(), Shipment.of(JobSettings()))
    assert type(failed.value) is raised
    assert failed.value.retriable is before


def test_a_start_of_spark_that_takes_too_long_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [1000.0], []

    def starts(**_: object) -> None:
        for now[0] in (1100.0, 1130.0):
            seen.append(session.overdue())
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(session, "launch_quietly", lambda *_: None)
    monkeypatch.setattr(session, "SparkContext", starts)
    with pytest.raises(JobFailedError):
        session._start(SparkConf(loadDefaults=False), JobSettings(), Shipment.of(JobSettings()))
    assert seen == [0.0, 10.0]
    assert session.overdue() == 0.0


def test_other_threads_get_the_session_without_telling_it_all_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = []

    def conf() -> SparkConf:
        told.append(1)
        return SparkConf()

    monkeypatch.setattr(session, "SparkConf", conf)
    settings = JobSettings(master="local[2,4]", data_dir=tmp_path)
    other = replace(settings, spark_config={"spark.headrace.told": "yes"})
    times = []
    for one in (settings, settings, other, other, settings):
        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(session.get_session, one).result() is spark
        times.append(len(told))
    assert times == [1, 1, 2, 2, 3]
    assert spark.conf.get("spark.headrace.told") == "yes"


def test_no_process_is_started_for_a_file_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    java: Any = spark._jvm
    conf = spark._jsc.hadoopConfiguration()
    files = java.org.apache.hadoop.fs.Path(str(tmp_path)).getFileSystem(conf)
    before = children_of_java()
    for name in ("a", "b"):
        files.create(java.org.apache.hadoop.fs.Path(f"{tmp_path}/folder/{name}"), True).close()
    assert children_of_java() == before
    found = {one.name: one.stat().st_mode & 0o7777 for one in tmp_path.rglob("*")}
    assert found == {"folder": 0o755, "a": 0o644, "b": 0o644, ".a.crc": 0o644, ".b.crc": 0o644}
    # What Java has no call for is left to the program.
    sticky = java.org.apache.hadoop.fs.permission.FsPermission("1777")
    files.setPermission(java.org.apache.hadoop.fs.Path(f"{tmp_path}/folder"), sticky)
    assert (tmp_path / "folder").stat().st_mode & 0o7777 == 0o1777
    assert children_of_java() > before


def children_of_java() -> int:
    """Page faults of the processes that Java has started and waited for: each has some."""
    gateway = SparkContext._gateway
    assert gateway is not None
    stat = Path(f"/proc/{gateway.proc.pid}/stat").read_text().rpartition(")")[2].split()
    return int(stat[8])


def test_error_that_comes_from_us_is_not_its_own_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = JobFailedError("Spark did not start")

    def not_started(*_: object) -> None:
        raise error

    monkeypatch.setattr(driver, "get_session", not_started)
    plan = SimpleNamespace(
        job="j", settings=JobSettings(data_dir=tmp_path), stages=SimpleNamespace(stages=[0])
    )
    connection: Any = SimpleNamespace(plan=plan)
    job = driver.JobDriver(connection, PlanHandle("", b""), {}, {}, lambda *_: None)
    job.record = CommitRecord(job="j", kind="open", epoch=1, batch=0)
    with pytest.raises(JobFailedError) as failed:
        job._run_query()
    assert failed.value is error
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("master", "said"),
    [
        ("nonsense[2]", "master is 'nonsense[2]', which Spark does not know"),
        ("spark://127.0.0.1:1", "on spark://127.0.0.1:1: no master answers at 127.0.0.1:1 ([Errno"),
        ("local[x]", "Spark did not start on local[x]: org.apache.spark.SparkException"),
    ],
)
def test_a_master_that_spark_refuses_is_named(tmp_path: Path, master: str, said: str) -> None:
    program = f"""
from pathlib import Path
from headrace.settings import JobSettings
from headrace.spark.session import get_session
get_session(JobSettings(master={master!r}, connect_timeout="1 s", data_dir=Path({str(tmp_path)!r})))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert said in done.stderr
