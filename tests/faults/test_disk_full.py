"""The broker's disk is full: everybody is told clearly, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import BrokerStorageError
from tests.faults.broker import Broker, make_lines, running_broker, send
from tests.faults.harness import kill_test
from tests.faults.local_driver import LocalDriver
from tests.faults.verification import problems, read_results

#: What the message must say: what happened, where, and what to do.
CLEAR = r"(?s)no space to write to .*broker.*bytes free.*make space on this disk"


class Disk:
    """A disk of its own that a test fills and frees again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Leave no room for anything."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                self._fill_by(file.fileno(), size)

    def _fill_by(self, fd: int, size: int) -> None:
        try:
            while True:
                os.write(fd, bytes(size))
        except OSError:
            return

    def await_swept(self) -> None:
        """Wait until staged parts that were committed are gone: their room must be filled, too."""
        deadline = time.monotonic() + 30
        while next(self.path.glob("**/*.part"), None) is not None:
            assert time.monotonic() < deadline, "committed parts stay"
            time.sleep(0.01)

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, timeout=30, check=False)
        refusal = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        refusal = str(error)
    if refusal:
        pytest.skip(f"no small disk can be mounted here: {refusal}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], timeout=30, check=True)


@pytest.fixture
def broker(disk: Disk) -> Iterator[Broker]:
    with running_broker(disk.path / "broker", ["--min-free-space", "0"]) as broker:
        yield broker


def test_batch_that_finds_no_room_to_stage_is_done_when_there_is(
    broker: Broker, disk: Disk, tmp_path: Path
) -> None:
    lines = make_lines(60)
    send(broker.address, lines)
    with LocalDriver(broker.address, tmp_path / "job") as driver:
        driver.commit(driver.process())
        disk.await_swept()
        disk.fill()
        with pytest.raises(BrokerStorageError, match=CLEAR):
            driver.process()
    with pytest.raises(BrokerStorageError, match=CLEAR):
        LocalDriver(broker.address, tmp_path / "job")
    assert sorted(read_results(broker.address).lines) == sorted(lines), "reads go on"
    disk.free()
    with LocalDriver(broker.address, tmp_path / "job") as driver:
        driver.catch_up()
    assert problems(read_results(broker.address), lines) == []


def test_commit_that_finds_no_room_succeeds_when_there_is(
    broker: Broker, disk: Disk, tmp_path: Path
) -> None:
    lines = make_lines(60)
    send(broker.address, lines)
    with LocalDriver(broker.address, tmp_path / "job") as driver:
        end = driver.process()
        disk.fill()
        with pytest.raises(BrokerStorageError, match=CLEAR):
            driver.commit(end)
        assert read_results(broker.address).each == {}
        disk.free()
        driver.commit(end)
        driver.catch_up()
    assert problems(read_results(broker.address), lines) == []


def test_lines_that_were_confirmed_are_kept_when_the_broker_dies_on_a_full_disk(
    broker: Broker, disk: Disk, tmp_path: Path
) -> None:
    confirmed = make_lines(60)
    send(broker.address, confirmed)
    disk.fill()
    with pytest.raises(BrokerStorageError, match=CLEAR):
        send(broker.address, make_lines(20, first=60))
    broker.kill()
    disk.free()
    broker.restart()
    with LocalDriver(broker.address, tmp_path / "job") as driver:
        driver.catch_up()
    assert problems(read_results(broker.address), confirmed) == []


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_job_on_spark_says_that_the_disk_is_full_and_goes_on_later(
    broker: Broker, disk: Disk, tmp_path: Path
) -> None:
    lines = make_lines(400)
    send(broker.address, lines)
    with kill_test(tmp_path, broker) as run:
        first = run.start_driver()
        run.await_batches(2)
        disk.fill()
        assert first.wait() == 1
        assert "no space to write to" in first.said
        assert "make space on this disk" in first.said
        disk.free()
        run.start_driver()
        run.await_caught_up()
        assert run.driver.stop() == 0
    assert problems(read_results(broker.address), lines) == []
