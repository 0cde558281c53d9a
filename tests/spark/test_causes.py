"""Why tasks failed, by what Spark says of it: texts as it wrote them."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import JavaEndedError, TaskFailedError, WorkerMismatchError
from headrace.spark import causes
from headrace.spark.causes import TaskWatch, read_failure

GAVE_UP = (
    "[STREAM_FAILED] Query [id = e0b4, runId = 4226] terminated with exception: Job aborted due to"
    " stage failure: Task 0 in stage 7.0 failed 4 times, most recent failure: Lost task 0.3 in"
    " stage 7.0 (TID 31) (10.77.0.6 executor 1): {}\n"
    "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)\n"
    "Driver stacktrace: SQLSTATE: XXKST\n"
    "=== Streaming Query ===\nIdentifier: [id = e0b4]\nLogical Plan:\n~WriteToMicroBatchDataSourceV1"
)
SAID = [
    (
        'java.io.IOException: Cannot run program "/opt/venv/bin/python": error=2, No such file',
        "machine 10.77.0.6 has no Python at /opt/venv/bin/python",
        WorkerMismatchError,
    ),
    (
        (
            "org.apache.spark.SparkException: \nError from python worker:\n  /usr/bin/python3: Error while"
            " finding module specification for 'headrace.spark.daemon' (ModuleNotFoundError: No module"
            " named 'headrace')\nPYTHONPATH was:\n  /opt/spark/python/lib/pyspark.zip"
        ),
        "the Python of machine 10.77.0.6 has no module 'headrace'",
        WorkerMismatchError,
    ),
    (
        (
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            "  File \"job.py\", line 3, in words\nModuleNotFoundError: No module named 'sklearn.svm'\n"
        ),
        "the Python of machine 10.77.0.6 has no module 'sklearn.svm'",
        WorkerMismatchError,
    ),
    (
        (
            "org.apache.spark.api.python.PythonException: pyspark.errors.exceptions.base."
            "PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12"
            " than that in driver: 3.11, PySpark cannot run with different minor versions."
        ),
        "machine 10.77.0.6 runs Python 3.12, and the driver of the job Python 3.11",
        WorkerMismatchError,
    ),
    (
        (
            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Executor"
            " heartbeat timed out after 22014 ms"
        ),
        "worker 10.77.0.6 has not been heard from for 22 s",
        TaskFailedError,
    ),
    (
        (
            "ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: worker lost:"
            " Not receiving heartbeat for 60 seconds"
        ),
        "worker 10.77.0.6 is gone",
        TaskFailedError,
    ),
    (
        (
            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command"
            " exited with code 137"
        ),
        "executor 1 on machine 10.77.0.6 was killed, perhaps for lack of memory",
        TaskFailedError,
    ),
    (
        (
            "ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command"
            " exited with code 56"
        ),
        "executor 1 on machine 10.77.0.6 ended with code 56",
        TaskFailedError,
    ),
    (
        (
            "ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: Remote RPC"
            " client disassociated. Likely due to containers exceeding thresholds, or network issues."
        ),
        "executor 1 on machine 10.77.0.6 is gone, with the results that it held",
        TaskFailedError,
    ),
    (
        "java.lang.OutOfMemoryError: Java heap space",
        "executor 1 on machine 10.77.0.6 ran out of memory",
        TaskFailedError,
    ),
    (
        (
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider"
            " setting 'spark.python.worker.faulthandler.enabled' configuration to 'true'"
        ),
        "a Python worker on machine 10.77.0.6 ended in the middle of a task",
        TaskFailedError,
    ),
    (
        "java.io.IOException: No space left on device",
        "the disk of machine 10.77.0.6 is full",
        TaskFailedError,
    ),
    (
        "org.apache.spark.SparkException: something new",
        "a task failed on machine 10.77.0.6: something new",
        TaskFailedError,
    ),
    (
        (
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            "  File \"worker.py\", line 9, in main\n    process()\n    ^^^^^^^\nKeyError: 'partition'\n"
        ),
        "a task failed on machine 10.77.0.6: KeyError: 'partition'",
        TaskFailedError,
    ),
]


def test_a_failure_is_told_by_cause_and_machine() -> None:
    wrong = []
    for said, told, kind in SAID:
        error = read_failure("words", GAVE_UP.format(said), "spark.log")
        if type(error) is not kind or not error.message.startswith(f"job 'words': {told}"):
            wrong.append((told, error))
        if "Logical Plan" in str(error) or "\tat " in str(error):
            wrong.append((told, error))
    assert wrong == []


def test_a_batch_that_an_executor_took_with_it_is_told_as_that() -> None:
    """What the driver's own call says of it, behind Python's traceback."""
    text = (
        "Traceback (most recent call last):\n"
        '  File "driver.py", line 282, in _on_batch\n'
        "py4j.protocol.Py4JJavaError: An error occurred while calling o469.getResult.\n"
        ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
        "\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)\n"
        "Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: A shuffle map"
        " stage with indeterminate output was failed and retried. However, Spark cannot rollback the"
        " ResultStage 33 to re-process the input data, and has to fail this job.\n"
    )
    error = read_failure("words", text, "spark.log")
    assert error.message.startswith("job 'words': an executor is gone, with results that")
    assert error.retriable


def test_where_more_is_told_is_named() -> None:
    error = read_failure("words", GAVE_UP.format("java.lang.Error: x"), "spark.log")
    assert error.hint is not None
    assert "see spark.log, and stderr of executor 1 on machine 10.77.0.6" in error.hint


def test_what_the_planner_says_is_the_driver_s() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 79] terminated with exception: Failed when Python streaming"
        " data source perform latestOffset: Traceback (most recent call last):\n"
        '  File "source.py", line 4, in latestOffset\n'
        "headrace.errors.ConnectionFailedError: connection to 10.77.0.1:9876 was lost\n"
        "  → is the server still running?\n SQLSTATE: 38000\n=== Streaming Query ===\n"
    )
    error = read_failure("words", text, "spark.log")
    assert error.message.endswith(": connection to 10.77.0.1:9876 was lost")
    assert error.retriable


class Records:
    """What Spark would tell."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = [executor("driver")]
        self.failed: list[tuple[str, str, str]] = []
        self.known, self.master = True, "spark://m:7077"
        self.silent: set[str] = set()

    def executors(self) -> list[dict[str, Any]]:
        return self.told

    def failures(self) -> list[tuple[str, str, str]]:
        return self.failed

    def gets_tasks(self, executor: str) -> bool:
        return executor not in self.silent

    def is_known(self) -> bool:
        return self.known

    def who_has_cores(self) -> str:
        return "spark://m:7077 has 2, which others hold or wait for: other (app-1)"


def executor(name: str, **more: Any) -> dict[str, Any]:
    told = {"id": name, "hostPort": f"10.0.0.{len(name)}:7", "isActive": True, "failedTasks": 0}
    return {**told, "removeReason": None, **more}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[TaskWatch, Records, list[float]]:
    now, records = [100.0], Records()
    monkeypatch.setattr(causes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(causes._Records, "of", lambda _: records)
    session = SimpleNamespace(_active_spark_context=object())
    monkeypatch.setattr(causes, "SparkContext", session)
    return TaskWatch("words", "spark.log"), records, now


def test_what_no_try_can_mend_is_seen_at_the_first_one(
    watched: tuple[TaskWatch, Records, list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    watch, records, now = watched
    records.told.append(executor("1", failedTasks=1))
    records.failed = [("10.0.0.1", "1", 'Cannot run program "/opt/python"')]
    now[0] += 2
    error = watch.look()
    assert isinstance(error, WorkerMismatchError)
    assert "machine 10.0.0.1 has no Python at /opt/python" in error.message
    assert caplog.messages == []


def test_a_machine_that_is_lost_is_told_once(
    watched: tuple[TaskWatch, Records, list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    watch, records, now = watched
    gone = "Executor heartbeat timed out after 20400 ms"
    records.told += [executor("1", isActive=False, removeReason=gone), executor("22")]
    for _ in range(3):
        now[0] += 2
        assert watch.look() is None
    assert caplog.messages == [
        "job 'words': worker 10.0.0.1 has not been heard from for 20 s; its tasks run again elsewhere"
    ]


def test_an_executor_that_is_given_back_is_no_loss(
    watched: tuple[TaskWatch, Records, list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    watch, records, now = watched
    for name, why in enumerate(
        ["Executor killed by driver.", "Executor decommission: spark scale down"]
    ):
        records.told.append(executor(str(name), isActive=False, removeReason=why))
    now[0] += 2
    assert watch.look() is None
    assert caplog.messages == []


def test_a_session_that_follows_another_has_executors_of_its_own(
    watched: tuple[TaskWatch, Records, list[float]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch, records, now = watched
    records.told.append(executor("1", isActive=False, removeReason="Command exited with code 56"))
    for _ in range(2):
        for _ in range(2):
            now[0] += 2
            watch.look()
        session = SimpleNamespace(_active_spark_context=object())
        monkeypatch.setattr(causes, "SparkContext", session)
    told = "job 'words': executor 1 on machine 10.0.0.1 ended with code 56"
    assert caplog.messages == [f"{told}; its tasks run again elsewhere"] * 2


def test_a_job_that_waits_for_cores_says_who_has_them(
    watched: tuple[TaskWatch, Records, list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is said of the seconds that executors take to start, and it is not said each second."""
    caplog.set_level(logging.WARNING)
    watch, records, now = watched
    told = []
    for _ in range(60):
        now[0] += 1.5
        watch.look()
        told.append(len(caplog.messages))
    assert told[4] == 0
    assert told[-1] == 3
    assert "job words waits for cores: spark://m:7077 has 2" in caplog.messages[0]
    assert watch.alone_at == now[0]
    records.told.append(executor("1"))
    for _ in range(60):
        now[0] += 1.5
        watch.look()
    assert len(caplog.messages) == 3
    assert watch.alone_at == now[0] - 90


def test_executors_that_get_no_tasks_any_more_are_none(
    watched: tuple[TaskWatch, Records, list[float]], caplog: pytest.LogCaptureFixture
) -> None:
    """The connection to one that ended while the driver was cut off never ends by itself."""
    watch, records, now = watched
    records.told += [executor("1"), executor("22")]
    for silent in ({"1"}, {"1", "22"}):
        records.silent = silent
        assert caplog.messages == []
        for _ in range(8):
            now[0] += 1.5
            assert watch.look() is None
    assert "job words waits for cores" in caplog.messages[0]
    records.known = False
    now[0] += 1.5
    error = watch.look()
    assert error is not None
    assert "no longer known" in error.message


def test_a_master_that_has_forgotten_the_job_is_not_waited_for(
    watched: tuple[TaskWatch, Records, list[float]],
) -> None:
    """Another try of the same session would wait for ever; nor is it asked only when it is told."""
    watch, records, now = watched
    looks = []
    for _ in range(8):
        now[0] += 1.5
        looks.append(watch.look())
    assert looks == [None] * 8
    records.known = False
    now[0] += 1.5
    error = watch.look()
    assert isinstance(error, JavaEndedError)
    assert "job 'words' is no longer known to spark://m:7077" in error.message
