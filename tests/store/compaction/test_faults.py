"""T8 to T10, T13, T15 to T17 and T20 on compaction logs: faults while one is compacted."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from headrace.errors import StoreError, StoreFailedError
from headrace.store import FileOps
from headrace.store.compaction import QueueLog
from tests.store.compaction.fault_samples import (
    KEY,
    QueueHistory,
    found_of,
    key_of,
    raw_records,
    tree,
)
from tests.store.compaction.samples import TestClock, open_log, records_of, settings
from tests.store.faulty_files import FailingAt, Killed, KilledAt
from tests.store.oracles import check_latest, check_log, check_views, offset_of
from tests.store.power import CutDuringSync, Disk

ROOT = Path(__file__).parents[3]
SMALL = {"file_size": 700, "dirty_ratio": 0.0}


def fill(log: QueueLog, history: QueueHistory, rounds: int = 12) -> None:
    """Write keys over and over, with a delete now and then; files close by themselves."""
    for number in range(rounds):
        value = None if number % 5 == 4 else f"{number}" * 20
        assert history.put(log, (f"k{number % 4}", value), (f"once{number}", "x"))


class Dirty:
    """A log with something to compact, and what it holds before and after."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = QueueHistory()
        log = open_log(folder, settings(**SMALL))
        fill(log, self.history)
        self.old = raw_records(log)
        log.close()
        done = folder.with_name("done")
        shutil.copytree(folder, done)
        log = open_log(done, settings(**SMALL))
        log.compact(force=True)
        self.new = raw_records(log)
        log.close()
        #: Names of the files that a finished compaction leaves.
        self.kinds = sorted(path.suffix for path in done.iterdir())
        assert len(self.new) < len(self.old)

    def copy(self, name: str) -> Path:
        target = self.folder.with_name(name)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder, target)
        return target

    def check(self, folder: Path) -> None:
        """I4 to I6: one whole view, the latest of each key; the next compaction makes it new."""
        log = open_log(folder, settings(**SMALL))
        records = raw_records(log)
        check_views(records, self.old, self.new)
        check_latest(self.old, records, key_of)
        assert log.next_offset == offset_of(self.old[-1]) + 1
        log.compact(force=True)
        assert raw_records(log) == self.new
        log.close()
        log = open_log(folder, settings(**SMALL))
        assert raw_records(log) == self.new
        log.close()
        before = tree(folder)
        log = open_log(folder, settings(**SMALL))
        log.close()
        assert tree(folder) == before
        assert sorted(path.suffix for path in folder.iterdir()) == self.kinds, "a file is left"


@pytest.fixture
def dirty(tmp_path: Path) -> Dirty:
    return Dirty(tmp_path / "dirty")


def compact(folder: Path, ops: FileOps) -> None:
    log = open_log(folder, settings(**SMALL), ops=ops)
    try:
        log.compact(force=True)
    finally:
        with contextlib.suppress(StoreError, OSError, Killed):
            log.close()


@pytest.mark.parametrize("first", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_t09_killed_at_every_file_operation_of_a_compaction(dirty: Dirty, first: int) -> None:
    """T9: in this process: nothing changes any more after the N-th operation."""
    counting = KilledAt(1 << 30)
    compact(dirty.copy("count"), counting)
    assert counting.done > 20
    for number in range(first, counting.done, 2):
        folder = dirty.copy("killed")
        with contextlib.suppress(Killed):
            compact(folder, KilledAt(number))
        dirty.check(folder)


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.soak)])
def test_t09_killed_for_real_at_file_operations(dirty: Dirty, step: int) -> None:
    """T9: processes that end themselves with SIGKILL before the N-th operation."""
    counting = KilledAt(1 << 30)
    compact(dirty.copy("count"), counting)
    numbers = list(range(2, counting.done, step))
    folders = [dirty.copy(f"killed{number}") for number in numbers]
    arguments = [f"{number}:{folder}" for number, folder in zip(numbers, folders, strict=True)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.compaction.kill_child", *arguments],
        cwd=ROOT,
        timeout=100,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split().count("killed") == len(numbers)
    for folder in folders:
        dirty.check(folder)


SWEEP = ["write", "sync", "open", "sync_directory", "rename", "unlink"]


#: Both errors once and for good; the other half of the combinations is for `make soak`.
CODES = [
    (errno.EIO, False),
    (errno.ENOSPC, True),
    pytest.param(errno.EIO, True, marks=pytest.mark.soak),
    pytest.param(errno.ENOSPC, False, marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("code", "for_good"), CODES)
@pytest.mark.parametrize("name", SWEEP)
def test_t10_t13_any_operation_of_a_compaction_fails(
    dirty: Dirty, name: str, for_good: bool, code: int
) -> None:
    """T10, T13: the old view stays (or the new one is there), and the next try does it."""
    failed = 0
    for number in range(1, 30):
        folder = dirty.copy("failing")
        ops = FailingAt(name, number, code, for_good=for_good)
        log = open_log(folder, settings(**SMALL), ops=ops)
        ops.armed = True
        with contextlib.suppress(StoreError):
            log.compact(force=True)
        check_views(raw_records(log), dirty.old, dirty.new)
        ops.armed = False
        with contextlib.suppress(StoreError):
            # Only a failed sync may have stopped it for good.
            log.compact(force=True)
            assert raw_records(log) == dirty.new
        with contextlib.suppress(StoreError):
            log.close()
        dirty.check(folder)
        if not ops.failed:
            break
        failed += 1
    assert failed


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.soak) for n in range(12, 500))]
)
def test_t08_the_power_is_cut_at_any_sync(tmp_path: Path, seed: int) -> None:
    """T8, B6: appends, rolls and compactions; unsynced writes and names are dropped or reordered."""
    chance = random.Random(seed)
    root, target = tmp_path / "live", tmp_path / "found"
    disk = CutDuringSync(root, target, chance.randint(2, 120), chance)
    history = QueueHistory()
    durable = 0
    log = open_log(root / "q", settings(**SMALL), ops=disk)
    while disk.left > 0:
        pairs = [(f"k{chance.randint(0, 5)}", f"{chance.random()}") for _ in range(3)]
        history.put(log, *pairs, sync=chance.random() < 0.7)
        if disk.left > 0:
            durable = log.durable_offset
        if chance.random() < 0.3:
            log.compact(force=True)
    log.close()
    _check_after_power_cut(target / "q", history, durable)


def test_what_a_failed_sync_left_in_memory_is_on_disk_before_a_restart_shows_it(
    tmp_path: Path,
) -> None:
    root, target, disk = tmp_path / "live", tmp_path / "found", Disk()
    history = QueueHistory()
    log = open_log(root / "q", settings(), ops=disk)
    history.put(log, ("a", "1"), sync=True)
    history.put(log, ("b", "2"), sync=False)
    disk.fails = True
    with pytest.raises(StoreFailedError):
        log.sync()
    disk.fails = False
    log.close()
    log = open_log(root / "q", settings(), ops=disk)
    seen = raw_records(log)
    disk.cut_power(root, target, random.Random(1))
    log.close()
    assert len(seen) == 2
    log = open_log(target / "q", settings())
    assert raw_records(log) == seen
    log.close()


def _check_after_power_cut(folder: Path, history: QueueHistory, durable: int) -> None:
    appended = {offset_of(record): record for step in history.steps for _, record in step.records}
    log = open_log(folder, settings(**SMALL))
    found = raw_records(log)
    offsets = [offset_of(record) for record in found]
    assert offsets == sorted(set(offsets))
    assert all(appended[offset_of(record)] == record for record in found), "I3"
    assert log.next_offset >= durable, "I1, I4"
    end = log.next_offset
    check_latest([record for at, record in sorted(appended.items()) if at < end], found, key_of)
    log.compact(force=True)
    log.roll()
    log.compact(force=True)
    latest = {key_of(record): record for at, record in sorted(appended.items()) if at < end}
    assert sorted(raw_records(log)) == sorted(latest.values())
    log.close()


@pytest.mark.parametrize("jump", [-3_600_000, 315_360_000_000, 0])
def test_t15_the_clock_jumps_and_tombstones_keep_their_time(tmp_path: Path, jump: int) -> None:
    """T15: a delete stays for its time as the store ages, whatever the wall clock says."""
    clock = TestClock()
    config = settings(tombstone_retention=timedelta(hours=1), dirty_ratio=0.0)
    log = open_log(tmp_path, config, clock=clock)
    for pair in (("a", "1"), ("b", "1"), ("a", None), ("c", "1")):
        log.append(records_of([(log.next_offset, *pair)]))
    log.roll()
    for age, kept in ((0, True), (3_599_000, True), (3_600_000, False)):
        clock.age = age
        log.compact(force=True)
        assert (2 in map(offset_of, raw_records(log))) is kept, age
        assert 0 not in map(offset_of, raw_records(log))
        clock.wall += jump
        log.close()
        log = open_log(tmp_path, config, clock=clock)
    assert [offset_of(record) for record in raw_records(log)] == [1, 3]
    assert log.next_offset == 4
    log.close()


@pytest.mark.parametrize("seconds", [1.0, pytest.param(600, marks=pytest.mark.soak)])
def test_t16_writer_compactions_rolls_and_readers_at_once(tmp_path: Path, seconds: float) -> None:
    """T16: each reader sees offsets rise, the latest of each key is there, the end is the model."""
    log = open_log(tmp_path, settings(file_size=8000, dirty_ratio=0.0))
    over, faults, model = threading.Event(), list[BaseException](), dict[str, bytes]()

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                while not over.is_set():
                    work()
            except BaseException as error:
                faults.append(error)

        return threading.Thread(target=run)

    def read_all() -> None:
        settled = dict(model)
        found = raw_records(log)
        offsets = [offset_of(record) for record in found]
        assert offsets == sorted(set(offsets))
        seen = {key_of(record): offset_of(record) for record in found}
        for key, record in settled.items():
            assert seen[key.encode()] >= offset_of(record), "the latest of a key is gone"

    threads = [guarded(read_all), guarded(read_all), guarded(lambda: _compact(log))]
    for thread in threads:
        thread.start()
    chance, end = random.Random(16), time.monotonic() + seconds
    while time.monotonic() < end and not faults:
        made = records_of([(log.next_offset, key := f"k{chance.randint(0, 40)}", "v" * 60)])
        log.append(made)
        model[key] = bytes(made.data)
        if chance.random() < 0.05:
            log.roll()
    over.set()
    for thread in threads:
        thread.join(60)
    assert not faults, faults
    log.roll()
    log.compact(force=True)
    assert sorted(raw_records(log)) == sorted(model.values())
    log.close()


def _compact(log: QueueLog) -> None:
    log.compact(force=True)
    time.sleep(0.001)


@pytest.mark.parametrize("turns", [80, pytest.param(10_000, marks=pytest.mark.soak)])
def test_t17_held_bytes_stay_valid_and_nothing_leaks(tmp_path: Path, turns: int) -> None:
    """T17: a reader holds what is compacted away; files, descriptors and mappings do not add up."""
    log = open_log(tmp_path, settings(**SMALL))
    history = QueueHistory()
    fill(log, history, 6)
    held = log.read(0, 100, 1 << 20).slices
    before = b"".join(held)
    process = psutil.Process()
    log.compact(force=True)
    descriptors = process.num_fds()
    for turn in range(turns):
        log.append(records_of([(log.next_offset, f"k{turn % 3}", "x" * 300)]))
        log.roll()
        log.compact(force=True)
        raw_records(log)
    assert b"".join(held) == before
    assert process.num_fds() <= descriptors + 3
    # Without the collector's help: the disk has the space back at once.
    mapped = [each for each in process.memory_maps(grouped=False) if str(tmp_path) in each.path]
    assert len(mapped) < 30
    assert len(list(tmp_path.iterdir())) < 60
    log.delete()
    assert b"".join(held) == before


def test_t20_a_log_that_was_cut_takes_the_offsets_again(tmp_path: Path) -> None:
    """T20: a cut below the end, in a closed file and in the active one: no refused duplicates."""
    log = open_log(tmp_path, settings(**SMALL))
    history = QueueHistory()
    fill(log, history)
    log.compact(force=True)
    for end in (20, 11, 3, 0):
        kept = [record for record in raw_records(log) if offset_of(record) < end]
        log.truncate(end)
        assert log.next_offset == end
        assert raw_records(log) == kept
        log.append(records_of([(end, "again", f"{end}")]))
        log.sync()
        assert [offset_of(record) for record in raw_records(log)][-1] == end
        log.close()
        log = open_log(tmp_path, settings(**SMALL))
        assert raw_records(log)[:-1] == kept
        assert log.next_offset == end + 1
    log.close()


@pytest.mark.parametrize("capacity", [1, 2, 5, None])
def test_a_map_of_any_size_gives_the_same(dirty: Dirty, capacity: int | None) -> None:
    """Map capacity 1: as many rounds as it takes."""
    log = open_log(dirty.copy("rounds"), settings(**SMALL))
    log.compact(force=True, map_capacity=capacity)
    assert raw_records(log) == dirty.new
    log.close()


def test_nothing_but_deletes(tmp_path: Path) -> None:
    """All tombstones, and a tombstone at the end: the end of the log does not move back."""
    log = open_log(tmp_path, settings(tombstone_retention=timedelta(0), dirty_ratio=0.0))
    for key in "abab":
        log.append(records_of([(log.next_offset, key, None)]))
    log.roll()
    log.compact(force=True)
    assert raw_records(log) == []
    assert (log.min_offset, log.next_offset) == (4, 4)
    log.close()
    log = open_log(tmp_path, settings(tombstone_retention=timedelta(0)))
    assert (log.min_offset, log.next_offset) == (4, 4)
    log.append(records_of([(4, "a", "1")]))
    assert found_of(log).next_offsets[KEY] == 5
    log.close()


def test_a_record_larger_than_a_file(tmp_path: Path) -> None:
    log = open_log(tmp_path, settings(**SMALL))
    history = QueueHistory()
    for size in (10, 5000, 10, 700, 5000):
        assert history.put(log, ("big" if size == 5000 else f"k{size}", "x" * size))
    log.roll()
    assert check_log(history, found_of(log)) == 5
    log.compact(force=True)
    assert [offset_of(record) for record in raw_records(log)] == [2, 3, 4]
    log.close()


def test_out_of_memory_changes_nothing(dirty: Dirty) -> None:
    """A MemoryError anywhere in a compaction: the old view stays, the next try does it."""
    calls = 0
    while True:
        folder, left = dirty.copy("memory"), [calls]

        def spend(_count: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise MemoryError

        log = open_log(folder, settings(**SMALL))
        try:
            log.compact(force=True, throttle=spend)
        except MemoryError:
            assert raw_records(log) == dirty.old
            log.compact(force=True)
            assert raw_records(log) == dirty.new
        else:
            break
        finally:
            log.close()
        dirty.check(folder)
        calls += 1
    assert calls > 5
