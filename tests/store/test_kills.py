"""Processes that are killed, and processes that meet."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import StoreLockedError
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.store import MessageStore
from tests.store.kill_child import QUEUES, store_settings
from tests.store.samples import bodies, settings

ROOT = Path(__file__).parents[2]


@contextmanager
def child(path: Path, kind: str, failpoints: str = "") -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {ENVIRONMENT_VARIABLE: failpoints}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.store.kill_child", str(path), kind],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def acknowledged(output: str) -> list[int]:
    """Numbers of the whole lines that a child printed."""
    lines = output.split("\n")[:-1]
    return [int(line) for line in lines if line != "ready"]


def check(store: MessageStore) -> tuple[list[int], list[int]]:
    """Check that units are whole; the numbers of lines and of units."""
    lines = [int(body) for body in bodies(store, "lines", 0)]
    commits = [int(body) for body in bodies(store, "commits", 0)]
    for queue in range(QUEUES):
        assert [int(body) for body in bodies(store, "counts", queue)] == commits
    assert lines == sorted(set(lines))
    assert commits == sorted(set(commits))
    return lines, commits


@pytest.mark.parametrize("kind", ["sync", "async", "beside"])
@pytest.mark.parametrize("kills", [4, pytest.param(1000, marks=pytest.mark.soak)])
def test_t07_killed_at_random_moments_nothing_acknowledged_is_lost(
    tmp_path: Path, kind: str, kills: int
) -> None:
    chance = random.Random(f"kill {kind}")
    acked: set[int] = set()
    for _ in range(kills):
        with child(tmp_path, kind) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            seen = [process.stdout.readline() for _ in range(chance.randint(3, 40))]
            time.sleep(chance.uniform(0, 0.005))
            process.send_signal(signal.SIGKILL)
            output, _ = process.communicate(timeout=30)
        acked |= set(acknowledged("".join(seen) + output))
        with MessageStore.open(tmp_path, store_settings(kind)) as store:
            lines, commits = check(store)
        # A process that is killed leaves what it wrote to the system, synced or not.
        assert acked <= set(lines) | set(commits)
    assert len(acked) > 20


@pytest.mark.parametrize(
    "failpoint",
    ["store.append.written", "store.append.synced", "store.unit.middle", "store.unit.end"],
)
@pytest.mark.parametrize("hit", [1, 3])
def test_t07_killed_at_the_worst_moment_units_are_whole(
    tmp_path: Path, failpoint: str, hit: int
) -> None:
    with child(tmp_path, "sync", f"{failpoint}=kill:{hit}") as process:
        output, _ = process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
    with MessageStore.open(tmp_path, store_settings("sync")) as store:
        lines, commits = check(store)
        assert set(acknowledged(output)) <= set(lines) | set(commits)
        cut = store.statistics().recovery.cut_bytes
        assert (cut > 0) == failpoint.startswith("store.unit")


@pytest.mark.parametrize("hit", [1, 4])
@pytest.mark.parametrize(
    "failpoint", ["slice", "beside", "reached", "joined"], ids="store.unit.{}".format
)
def test_t07_killed_while_a_unit_is_beside_the_log_it_is_there_whole_or_not_at_all(
    tmp_path: Path, failpoint: str, hit: int
) -> None:
    with child(tmp_path, "beside", f"store.unit.{failpoint}=kill:{hit}") as process:
        output, _ = process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
    with MessageStore.open(tmp_path, store_settings("beside")) as store:
        lines, commits = check(store)
        acked = set(acknowledged(output))
        assert acked <= set(lines) | set(commits)
        more = set(commits) - acked
        assert len(more) == (1 if failpoint == "joined" else 0)
        assert [path.name for path in (tmp_path / "log").glob("*.beside")] == []
        # Nothing of the log was cut: what had not joined it was never a part of it.
        assert store.statistics().recovery.cut_bytes == 0


def test_without_unit_marks_the_same_kill_leaves_half_a_unit(tmp_path: Path) -> None:
    with child(tmp_path, "unmarked", "store.unit.middle=kill:3") as process:
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
    with (
        MessageStore.open(tmp_path, store_settings("unmarked")) as store,
        pytest.raises(AssertionError),
    ):
        check(store)


def test_t18_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with child(tmp_path, "sync") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(StoreLockedError, match=f"open in process {process.pid}\n"):
            MessageStore.open(tmp_path, settings())
        process.kill()
        process.communicate(timeout=30)
    MessageStore.open(tmp_path, settings()).close()


def test_t18_a_second_store_in_one_process_is_refused(tmp_path: Path) -> None:
    with (
        MessageStore.open(tmp_path, settings()),
        pytest.raises(StoreLockedError, match=f"process {os.getpid()}"),
    ):
        MessageStore.open(tmp_path, settings())
