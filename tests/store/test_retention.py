"""What goes when it is too old or too much, and what stays whatever happens then."""

from __future__ import annotations

import errno
import os
import shutil
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import NotFoundError, SettingsError
from headrace.store import FileOps, MessageStore, ReadStatus, StageKey, StoreSettings
from tests.store.samples import (
    FaultyOps,
    UnsyncedOps,
    all_records,
    append_of,
    bodies,
    chunk_of,
    contents,
    copy_store,
    log_files,
    section_of,
    settings,
)
from tests.store.test_writer import eventually

HOUR = 3_600_000
#: One segment holds about four messages of a hundred bytes.
SMALL = settings(segment_size=1000, index_file_units=4, retention=timedelta(hours=1))


class Clock:
    """The time, moved by the test."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(
    path: Path, clock: Clock, how: StoreSettings = SMALL, ops: FileOps | None = None
) -> MessageStore:
    return MessageStore.open(path, how, ops=ops or UnsyncedOps(), clock=clock)


def fill(store: MessageStore, count: int, topic: str = "lines", queue_id: int = 0) -> None:
    first = store.bounds(topic, queue_id).max_offset
    for number in range(first, first + count):
        store.append([append_of(topic, queue_id, [b"%03d" % number * 30])]).result()


def numbers(store: MessageStore, topic: str = "lines", queue_id: int = 0) -> list[int]:
    return [int(body[:3]) for body in bodies(store, topic, queue_id)]


def unit(store: MessageStore, number: int, count: int = 20) -> None:
    key = StageKey("job", 1, number, 0, 0, 0)
    sections = [
        section_of("counts", queue, [b"%03d" % n * 30 for n in range(count)]) for queue in (0, 1)
    ]
    store.stage(key, 0, chunk_of(*sections))
    store.commit_unit([key], [append_of("commits", 0, [b"%d" % number])]).result()
    store.drop_staged("job", lambda _: False)


def test_old_segments_go_and_the_first_offset_moves_to_the_first_message_left(
    tmp_path: Path, clock: Clock
) -> None:
    with opened(tmp_path, clock) as store:
        fill(store, 20)
        clock.now += 2 * HOUR
        fill(store, 5)
        files = len(log_files(tmp_path))
        report = store.expire()
        assert (report.segments, report.begin) == (
            files - len(log_files(tmp_path)),
            store.statistics().begin,
        )
        assert report.segments >= 4
        bounds = store.bounds("lines", 0)
        assert 10 < bounds.min_offset <= 20
        assert bounds.max_offset == 25
        assert numbers(store) == list(range(bounds.min_offset, 25))
        assert store.read("lines", 0, bounds.min_offset - 1).status is ReadStatus.BELOW_MIN
        with pytest.raises(NotFoundError, match=f"offsets {bounds.min_offset} to before 25, not 3"):
            store.store_time("lines", 0, 3)
        with pytest.raises(NotFoundError):
            store.read_at(44)
        assert store.offset_at("lines", 0, 0) == bounds.min_offset
        assert store.expire().segments == 0


def test_nothing_goes_before_its_time(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, clock) as store:
        fill(store, 20)
        clock.now += HOUR
        assert store.expire().segments == 0
        clock.now += 1
        assert store.expire().segments > 0


def test_the_segment_that_is_written_to_stays_however_old(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, clock) as store:
        fill(store, 2)
        clock.now += 1000 * HOUR
        assert store.expire().segments == 0
        assert numbers(store) == [0, 1]


def test_by_size_the_oldest_segments_go(tmp_path: Path, clock: Clock) -> None:
    how = settings(segment_size=1000, retention=None, retention_size=3000)
    with opened(tmp_path, clock, how) as store:
        fill(store, 40)
        store.expire()
        held = store.statistics()
        assert 2000 < held.end - held.begin <= 3000
        assert numbers(store)[-1] == 39


class FullDisk(UnsyncedOps):
    """A disk on which this store is the only thing that can go."""

    def __init__(self, path: Path, rest: int) -> None:
        self.path, self.rest = path, rest

    def disk_usage(self, path: Path) -> tuple[int, int]:
        return self.rest + sum(file.stat().st_size for file in log_files(self.path)), 100_000


def test_a_disk_beyond_its_watermark_loses_the_oldest_segments_early(
    tmp_path: Path, clock: Clock
) -> None:
    how = settings(segment_size=1000, disk_watermark=0.8)
    ops = FullDisk(tmp_path, 0)
    with opened(tmp_path, clock, how, ops) as store:
        fill(store, 40)
        assert store.expire().segments == 0
        ops.rest = 80_000 - store.statistics().end + 1500
        store.hold(lambda: 0)
        assert store.expire().segments == 2
        assert ops.disk_usage(tmp_path)[0] <= 80_000


def test_a_follower_holds_back_what_it_still_needs(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, clock) as store:
        fill(store, 20)
        clock.now += 2 * HOUR
        third = int(log_files(tmp_path)[2].stem)
        needed: list[int | None] = [third + 17, third + 5000]
        for number in range(2):
            store.hold(partial(needed.__getitem__, number))
        assert store.expire().begin == third
        needed[0] = None
        assert third < store.expire().begin <= third + 5000
        needed[1] = None
        assert store.expire().begin > third


def test_offsets_go_on_after_every_message_of_a_queue_has_gone(
    tmp_path: Path, clock: Clock
) -> None:
    with opened(tmp_path, clock) as store:
        fill(store, 10, "old")
        fill(store, 5)
        clock.now += 2 * HOUR
        fill(store, 5)
        store.expire()
        assert store.bounds("old", 0).min_offset == store.bounds("old", 0).max_offset == 10
        assert store.read("old", 0, 3).status is ReadStatus.EMPTY
    for damage in (False, True):
        if damage:
            (tmp_path / "checkpoint").unlink()
            shutil.rmtree(tmp_path / "index")
        with opened(tmp_path, clock) as store:
            assert store.bounds("old", 0).max_offset == 10
            assert numbers(store)[-1] == 9
    with opened(tmp_path, clock) as store:
        [result] = store.append([append_of("old", 0, [b"010" * 30])]).result()
        assert result.first_offset == 10
        assert numbers(store, "old") == [10]


def test_slices_that_were_read_stay_valid(tmp_path: Path, clock: Clock) -> None:
    with opened(tmp_path, clock) as store:
        fill(store, 20)
        result = store.read("lines", 0, 0, 4)
        before = b"".join(result.slices)
        clock.now += 2 * HOUR
        assert store.expire().segments > 3
        assert b"".join(result.slices) == before


def test_index_files_of_what_is_gone_go_with_the_next_checkpoint(
    tmp_path: Path, clock: Clock
) -> None:
    with opened(tmp_path, clock) as store:
        fill(store, 40)
        clock.now += 2 * HOUR
        fill(store, 5)
        store.expire()
        first = store.bounds("lines", 0).min_offset
        store._writer.checkpoint().result()
        files = sorted(int(file.stem) for file in tmp_path.glob("index/lines/0-0/*.idx"))
        assert files[0] == first // 4 * 4
    with opened(tmp_path, clock) as store:
        assert numbers(store) == list(range(first, 45))
        assert store.statistics().recovery.checked_bytes == 0


@pytest.mark.parametrize("lost", ["checkpoint", "index", "both"])
def test_after_retention_the_log_alone_tells_where_all_queues_go_on(
    tmp_path: Path, clock: Clock, lost: str
) -> None:
    with opened(tmp_path, clock) as store:
        fill(store, 10)
        fill(store, 3, "idle", 7)
        store.append([append_of("gone", 0, [b"x" * 90])]).result()
        store.delete_topic("gone").result()
        clock.now += 2 * HOUR
        unit(store, 1)
        fill(store, 10)
        store.compact_topic("idle").result()
        fill(store, 5)
        store.expire()
        begin, held = store.statistics().begin, contents(store)
        ends = {key: store.bounds(*key) for key in store.queues()}
    assert begin > 0
    if lost != "index":
        (tmp_path / "checkpoint").unlink()
    if lost != "checkpoint":
        shutil.rmtree(tmp_path / "index")
    with opened(tmp_path, clock) as store:
        assert contents(store) == held
        assert {key: store.bounds(*key) for key in store.queues()} == ends
        assert store.bounds("gone", 0).max_offset == 0
        assert store.compacted_topics() == ["idle"]
        fill(store, 3, "idle", 7)
        assert store.bounds("idle", 7).max_offset == 6


def test_a_log_that_begins_inside_a_unit_is_replayed_from_there(
    tmp_path: Path, clock: Clock
) -> None:
    how = settings(segment_size=1000, index_file_units=4, retention=None, retention_size=6000)
    with opened(tmp_path, clock, how) as store:
        fill(store, 3)
        unit(store, 1)
        store.expire()
        held, begin = contents(store), store.statistics().begin
        ends = {key: store.bounds(*key) for key in store.queues()}
        assert [len(held["counts", queue]) for queue in (0, 1)] == [0, 20]
    (tmp_path / "checkpoint").unlink()
    with opened(tmp_path, clock, how) as store:
        assert store.statistics().recovery.checked_from == begin
        assert contents(store) == held
        assert {key: store.bounds(*key) for key in store.queues()} == ends
        unit(store, 2)
        assert store.bounds("counts", 0).max_offset == 40


def test_a_store_from_before_states_opens_and_loses_only_what_may_go(
    tmp_path: Path, clock: Clock
) -> None:
    with opened(tmp_path, clock) as store:
        store._log.state = None
        fill(store, 20)
        held = contents(store)
    for file in log_files(tmp_path):
        os.utime(file, (clock.now / 1000, clock.now / 1000))
    with opened(tmp_path, clock) as store:
        assert contents(store) == held
        clock.now += 2 * HOUR
        # No segment tells how queues stood at its start: none can be the first.
        assert store.expire().segments == 0
        fill(store, 20)
        with_state = int(log_files(tmp_path)[-1].stem)
        clock.now += 2 * HOUR
        assert 0 < store.expire().begin <= with_state
        held = contents(store)
    (tmp_path / "checkpoint").unlink()
    with opened(tmp_path, clock) as store:
        assert contents(store) == held


class KillOps(UnsyncedOps):
    """Copies the store away as a kill before one file operation would leave it."""

    def __init__(self, path: Path, target: Path, at: int) -> None:
        self.path, self.target, self.left = path, target, at

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            copy_store(self.path, self.target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)

    def fdatasync(self, fd: int) -> None:
        self._step()
        super().fdatasync(fd)

    def open(self, path: Path, flags: int) -> int:
        self._step()
        return super().open(path, flags)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_kill_at_every_file_operation_of_retention_does_no_harm(
    tmp_path: Path, clock: Clock, checkpoint: bool
) -> None:
    live, found = tmp_path / "live", tmp_path / "found"
    step = 0
    while True:
        step += 1
        shutil.rmtree(live, ignore_errors=True)
        shutil.rmtree(found, ignore_errors=True)
        clock.now = 1_000_000_000_000
        ops = KillOps(live, found, 0)
        with opened(live, clock, ops=ops) as store:
            fill(store, 10)
            fill(store, 4, "old")
            clock.now += 2 * HOUR
            fill(store, 5)
            store._writer.checkpoint().result()
            ops.left = step
            assert store.expire().segments >= 2
            store._writer.checkpoint().result()
            held = contents(store)
            ends = {key: store.bounds(*key).max_offset for key in store.queues()}
            ops.left = 0
        if not found.exists():
            assert step > 8
            return
        if not checkpoint:
            (found / "checkpoint").unlink(missing_ok=True)
        for _ in range(2):
            with opened(found, clock) as store:
                assert {key: store.bounds(*key).max_offset for key in store.queues()} == ends
                for key, records in held.items():
                    got = all_records(store, *key)
                    assert got[len(got) - len(records) :] == records
        with opened(found, clock) as store:
            store.expire()
            assert contents(store) == held


@pytest.mark.parametrize("operation", ["unlink", "sync_directory"])
def test_a_file_that_cannot_be_deleted_is_tried_again_before_any_other(
    tmp_path: Path, clock: Clock, operation: str
) -> None:
    ops = FaultyOps()
    with opened(tmp_path, clock, ops=ops) as store:
        fill(store, 20)
        clock.now += 2 * HOUR
        store._writer.checkpoint().result()
        calls = ops.calls[operation]
        ops.plan = lambda name, number: (
            errno.EIO if name == operation and number == calls + 2 else 0
        )
        with pytest.raises(OSError, match="Input/output"):
            store.expire()
        held = contents(store)
        copy = copy_store(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy")
        ops.plan = lambda name, number: 0
        clock.now += 2 * HOUR
        fill(store, 20)
        store.expire()
    with opened(copy, clock) as store:
        for key, records in held.items():
            assert all_records(store, *key)[-len(records) :] == records
    with opened(tmp_path, clock) as store:
        assert store.bounds("lines", 0).max_offset == 40
    shutil.rmtree(copy)


def test_store_times_do_not_fall_when_the_clock_does(tmp_path: Path, clock: Clock) -> None:
    """T15: after a step back of an hour, and over a restart, a search by time finds its way."""
    with opened(tmp_path, clock) as store:
        fill(store, 3)
        first = store.store_time("lines", 0, 0)
        clock.now -= HOUR
        fill(store, 3)
        assert store.store_time("lines", 0, 5) == first
    with opened(tmp_path, clock) as store:
        fill(store, 3)
        assert store.store_time("lines", 0, 8) == first
        clock.now = first + 10
        fill(store, 1)
        assert store.offset_at("lines", 0, first + 1) == 9
    (tmp_path / "checkpoint").unlink()
    clock.now -= HOUR
    with opened(tmp_path, clock) as store:
        fill(store, 1)
        assert store.store_time("lines", 0, 10) == first + 10


@pytest.mark.parametrize(
    "change",
    [
        {"retention": timedelta(0)},
        {"retention_size": -1},
        {"disk_watermark": 0.0},
        {"disk_watermark": 1.1},
        {"maintenance_interval": timedelta(0)},
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(change))):
        settings(**change)


def test_maintenance_deletes_by_itself(tmp_path: Path, clock: Clock) -> None:
    how = settings(
        segment_size=1000,
        retention=timedelta(hours=1),
        maintenance_interval=timedelta(milliseconds=5),
    )
    with opened(tmp_path, clock, how) as store:
        fill(store, 20)
        clock.now += 2 * HOUR
        assert eventually(lambda: store.bounds("lines", 0).min_offset > 10)
