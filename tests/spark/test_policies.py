"""What a job does about failures on Spark: operators that hang, sinks that fail, for now and for good."""

from __future__ import annotations

import signal
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from headrace import serdes
from headrace.errors import BatchTimeoutError, RollbackError
from headrace.spark import StreamJob
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.clusters import Cluster
from tests.spark.pipelines import LIMIT, Rig

pytestmark = pytest.mark.spark

LINES = [f"line {number}" for number in range(40)]


@pytest.fixture
def cluster(embedded: Cluster) -> Cluster:
    return embedded


def first_time(flag: Path) -> bool:
    """Tell whether nobody has asked yet, in any process."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def hang(line: str, flag: Path, *, deaf: bool = False) -> str:
    """Hang at line 7: once, or always where there is no flag; deaf to alarms, as C code may be."""
    if line == "line 7" and (flag.name == "always" or first_time(flag)):
        if deaf:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(100)
    return line


def hanging(name: str, lines: str, seen: str, flag: Path, *, deaf: bool = False) -> Topology:
    builder = StreamBuilder(name)
    (
        builder.source(lines, serdes.string)
        .key_by(lambda line: line)
        .reduce(lambda old, new: new, emit="each")
        .to_stream()
        .map_values(lambda line: hang(line, flag, deaf=deaf), name="hangs")
        .sink(seen, serdes.string)
    )
    return builder.build()


def committed(rig: Rig, topic: str) -> Counter[bytes]:
    return Counter(body for _, body in rig.read(topic))


EVERY_LINE_ONCE = Counter(line.encode() for line in LINES)


def failing_sink(name: str, lines: str, seen: str, failures: Path) -> Topology:
    """Copy lines; the sink fails at line 30, as long as the file has a letter left."""

    def write(line: str) -> bytes:
        if line == "line 30" and (left := failures.read_text()):
            failures.write_text(left[1:])
            raise RollbackError("the sink is away")
        return line.encode()

    builder = StreamBuilder(name)
    builder.source(lines, serdes.string).sink(seen, write)
    return builder.build()


def test_sink_that_fails_twice_writes_one_copy(rig: Rig) -> None:
    lines, seen = rig.topic(queues=1), rig.topic()
    failures = rig.folder / "failures"
    failures.write_text("xx")
    rig.send(lines, LINES)
    job = StreamJob(failing_sink(f"twice-{lines}", lines, seen, failures), rig.settings())
    with job.start():
        job.await_caught_up(LIMIT)
        assert job.statistics().restarts == 2
    assert committed(rig, seen) == EVERY_LINE_ONCE


def test_sink_that_fails_for_good_stops_the_job_and_offsets_stay(rig: Rig) -> None:
    lines, seen = rig.topic(queues=1), rig.topic()
    failures = rig.folder / "failures"
    failures.write_text("x" * 1000)
    rig.send(lines, LINES)
    topology = failing_sink(f"gone-{lines}", lines, seen, failures)
    settings = rig.settings(rollback_retries=2, max_records_per_batch=20)
    with StreamJob(topology, settings).start() as job:
        with pytest.raises(RollbackError, match="2 roll-backs to batch 1 did not help"):
            job.await_termination(LIMIT)
        assert (job.statistics().batch, job.statistics().restarts) == (1, 2)
    assert committed(rig, seen) == Counter(line.encode() for line in LINES[:20])
    failures.write_text("")
    rig.run(topology)
    assert committed(rig, seen) == EVERY_LINE_ONCE


@pytest.mark.slow
@pytest.mark.parametrize(
    "deaf", [pytest.param(False, id="sleep", marks=pytest.mark.soak), pytest.param(True, id="deaf")]
)
def test_hung_operator_is_broken_off_and_the_batch_done_again(
    rig: Rig, caplog: pytest.LogCaptureFixture, *, deaf: bool
) -> None:
    lines, seen = rig.topic(), rig.topic()
    topology = hanging(f"hung-{lines}", lines, seen, rig.folder / "hung", deaf=deaf)
    rig.send(lines, LINES[:5])
    limit = timedelta(seconds=15)
    with StreamJob(topology, rig.settings(batch_timeout=limit)).start() as job:
        job.await_caught_up(LIMIT)
        rig.send(lines, LINES[5:])
        began = time.monotonic()
        while job.statistics().restarts == 0:
            assert time.monotonic() - began < 60, "the watchdog did not bite"
            time.sleep(0.05)
        rolled_back = time.monotonic() - began
        job.await_caught_up(LIMIT)
        assert job.statistics().restarts == 1
    # A busy machine begins late; what hangs would do so for a hundred seconds.
    assert rolled_back <= 3 * limit.total_seconds()
    # An alarm knows the operator; a trace, only the line.
    assert ("operator 'hangs'" in caplog.text) != deaf
    assert "test_policies.py:" in caplog.text
    assert "in hang" in caplog.text
    assert committed(rig, seen) == EVERY_LINE_ONCE


@pytest.mark.slow
def test_operator_that_hangs_for_good_stops_the_job_and_is_named(rig: Rig) -> None:
    lines, seen = rig.topic(), rig.topic()
    topology = hanging(f"stuck-{lines}", lines, seen, rig.folder / "always")
    rig.send(lines, LINES)
    given = {"batch_timeout": timedelta(seconds=6), "rollback_retries": 1}
    with StreamJob(topology, rig.settings(**given)).start() as job:
        with pytest.raises(BatchTimeoutError) as caught:
            job.await_termination(LIMIT)
        assert job.statistics().restarts == 1
    message = str(caught.value)
    assert "operator 'hangs' did not end batch 1 within 6 s" in message
    assert "test_policies.py" in message
    assert "time.sleep(100)" in message
    assert "1 roll-backs to batch 0 did not help (setting rollback_retries)" in message
    assert committed(rig, seen) == Counter()


@pytest.mark.slow
def test_idle_source_never_triggers_the_watchdog(rig: Rig) -> None:
    lines, seen = rig.topic(), rig.topic()
    topology = hanging(f"idle-{lines}", lines, seen, rig.folder / "hung")
    given = {"batch_timeout": timedelta(seconds=5)}
    with StreamJob(topology, rig.settings(**given)).start() as job:
        rig.send(lines, LINES[:5])
        job.await_caught_up(LIMIT)
        assert not job.await_termination(timedelta(seconds=8))
        assert job.statistics().restarts == 0
