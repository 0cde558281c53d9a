"""Jobs whose tasks are resident, on real Spark."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from headrace import serdes
from headrace.errors import UserCodeError
from headrace.spark import StreamJob
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.spark.pipelines import LIMIT, Rig, word_count

pytestmark = pytest.mark.spark

TEXT = ["to be or not to be", "that is the question", "To be is to do", "do be do be do"] * 25


def words(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.lower().split())


def split_here(folder: Path, line: str) -> list[str]:
    """Split a line, and leave a note of the process that does so."""
    (folder / str(os.getpid())).touch()
    return line.lower().split()


def noted_count(name: str, lines: str, counts: str, folder: Path) -> Topology:
    builder = StreamBuilder(name)
    (
        builder.source(lines, serdes.string)
        .flat_map_values(partial(split_here, folder))
        .key_by(lambda word: word)
        .count()
        .sink(counts, serdes.json)
    )
    return builder.build()


def test_counts_are_exact_over_kills_and_changes_of_the_executor(rig: Rig, tmp_path: Path) -> None:
    lines, counts, folder = rig.topic(queues=2), rig.topic(), tmp_path / "pids"
    folder.mkdir()
    topology = noted_count(f"resident-{lines}", lines, counts, folder)
    rig.send(lines, TEXT)
    rig.run(topology)
    for path in folder.iterdir():
        path.unlink()
    with StreamJob(topology, rig.settings(executor="resident")).start() as job:
        rig.send(lines, TEXT[:30])
        job.await_caught_up(LIMIT)
        assert rig.latest(counts) == words(TEXT + TEXT[:30])
        for path in folder.iterdir():
            os.kill(int(path.name), signal.SIGKILL)
            path.unlink()
            rig.send(lines, TEXT[:10])
            job.await_caught_up(LIMIT)
        killed = job.statistics().restarts
        assert killed >= 1
        assert all(os.path.exists(f"/proc/{path.name}") for path in folder.iterdir())  # noqa: PTH110
    sent = Counter({word: count * killed for word, count in words(TEXT[:10]).items()})
    assert rig.latest(counts) == words(TEXT + TEXT[:30]) + sent
    rig.send(lines, TEXT)
    rig.run(topology)
    assert rig.latest(counts) == words(TEXT * 2 + TEXT[:30]) + sent
    assert not alive(folder)


def alive(folder: Path) -> list[str]:
    """Return the noted processes that still run what the job had them run."""
    deadline = time.monotonic() + 20
    found = [path.name for path in folder.iterdir()]
    while time.monotonic() < deadline:
        found = [pid for pid in found if holds_state(pid)]
        if not found:
            break
        time.sleep(0.05)
    return found


def holds_state(pid: str) -> bool:
    try:
        return any(".sst" in os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir())  # noqa: PTH115
    except OSError:
        return False


def test_an_error_of_the_users_code_names_its_line(rig: Rig) -> None:
    lines, counts = rig.topic(), rig.topic()
    builder = StreamBuilder(f"wrong-{lines}")
    builder.source(lines, serdes.string).map_values(lambda line: 1 // len(line)).sink(
        counts, serdes.json
    )
    rig.send(lines, ["a", "", "b"])
    with (
        StreamJob(builder.build(), rig.settings(executor="resident")).start() as job,
        pytest.raises(UserCodeError, match="division") as caught,
    ):
        job.await_caught_up(LIMIT)
    assert "test_resident.py" in str(caught.value)


def test_two_jobs_run_beside_each_other(rig: Rig) -> None:
    lines, ones, twos = rig.topic(), rig.topic(), rig.topic()
    settings = rig.settings(executor="resident", partitions=1)
    with (
        StreamJob(word_count(f"one-{lines}", lines, ones), settings).start() as one,
        StreamJob(word_count(f"two-{lines}", lines, twos), settings).start() as two,
    ):
        rig.send(lines, TEXT)
        one.await_caught_up(LIMIT)
        two.await_caught_up(LIMIT)
    assert rig.latest(ones) == rig.latest(twos) == words(TEXT)
