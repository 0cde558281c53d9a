"""Crashes and failing disks: the old or the new view, never a mixture, and nothing left over."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.errors import StoreError, StoreFailedError, StoreFullError
from headrace.store.compaction import QueueLog
from headrace.store.compaction.manifest import read_manifest
from headrace.store.fileops import FileOps
from tests.store.compaction.killing import Killed, KillingOps
from tests.store.compaction.samples import (
    Record,
    TestClock,
    append,
    decode,
    files,
    open_log,
    settings,
    survivors,
)
from tests.store.samples import FaultyOps


class QuickFaultyOps(FaultyOps):
    """Fails as it is told, and syncs nothing: no power is cut here."""

    def fdatasync(self, fd: int) -> None:
        self._ask("sync")

    def sync_directory(self, path: Path) -> None:
        self._ask("sync_directory")


CONFIG = settings(tombstone_retention=timedelta(0), file_size=3000)


def fill(log: QueueLog) -> None:
    """Closed files of which some lose nothing, some a part, some all; and an active one."""
    append(log, *((f"once{i}", "x" * 50) for i in range(20)))
    log.roll()
    for number in range(3):
        append(log, *((f"k{(number + i) % 7}", f"{number}.{i}") for i in range(6)))
        append(log, ("gone", None if number % 2 else "x"), (f"once{number}", None))
        log.roll()
    append(log, ("k1", "live"), ("once7", "live"))


def expected_files(folder: Path) -> set[str]:
    """What a folder may hold: what its manifest names, and the active file."""
    manifest = read_manifest(folder, FileOps())
    assert manifest is not None
    names = {"MANIFEST", "MANIFEST.copy"}
    for meta in manifest.files:
        numbered = f"{meta.name}.{meta.derived}"
        names |= {f"{meta.name}.data", f"{numbered}.index", f"{numbered}.keys"}
    active = manifest.active
    active_names = (f"{active}.data", f"{active}.0.index", f"{active}.0.keys", f"{active}.synced")
    return names | {name for name in active_names if (folder / name).exists()}


def make(folder: Path) -> tuple[list[Record], list[Record]]:
    """Make a log in a folder; give what it holds before and after a compaction."""
    log = open_log(folder, CONFIG)
    fill(log)
    log.close()
    shutil.copytree(folder, folder.with_name("after"))
    done = open_log(folder.with_name("after"), CONFIG)
    before = survivors(done, 100)
    done.compact(force=True)
    after = survivors(done, 100)
    done.close()
    assert len(after) < len(before)
    return before, after


def compact(log: QueueLog) -> None:
    log.compact(force=True)


def every_point(
    tmp_path: Path, work: Callable[[QueueLog], object]
) -> list[tuple[str, Path, Callable[[], None]]]:
    """Do some work on a copy of a log, killed before each file operation in turn."""
    points = []
    kill_at = 1
    while True:
        folder = tmp_path / f"killed-{kill_at}"
        shutil.copytree(tmp_path / "q", folder)
        ops = KillingOps()
        log = open_log(folder, CONFIG, ops=ops)
        ops.arm(kill_at)
        try:
            work(log)
        except Killed as killed:
            points.append((f"{kill_at}: {killed}", folder, log._appender._writer.release))
            kill_at += 1
        else:
            ops.arm(None)
            log.close()
            return points


def test_t09_c20_a_kill_at_every_file_operation_of_a_compaction(tmp_path: Path) -> None:
    """B3, B4: the old or the new view; the next compaction gives what an unharmed one gives."""
    before, after = make(tmp_path / "q")
    points = every_point(tmp_path, compact)
    assert len(points) > 25
    seen = set()
    for point, folder, release in points:
        release()
        log = open_log(folder, CONFIG)
        found = survivors(log, 100)
        assert found in (before, after), point
        seen.add(len(found))
        assert files(folder) == expected_files(folder), point
        assert log.next_offset == after[-1][0] + 1
        log.compact(force=True)
        assert survivors(log, 100) == after, point
        append(log, ("last", "x"))
        log.close()
        log = open_log(folder, CONFIG)
        assert survivors(log, 100)[:-1] == after, point
        assert files(folder) == expected_files(folder), point
        assert log.verify() == []
        log.close()
        shutil.rmtree(folder)
    assert seen == {len(before), len(after)}


def test_a_kill_at_every_file_operation_of_appends_and_rolls(tmp_path: Path) -> None:
    before, _ = make(tmp_path / "q")

    def work(log: QueueLog) -> None:
        append(log, ("new", "1"), ("new", "2"))
        log.sync()
        log.roll()
        append(log, ("new", "3"))
        log.sync()

    more: list[Record] = [(before[-1][0] + 1 + i, "new", str(i + 1)) for i in range(3)]
    allowed = [before + more[:count] for count in range(4)]
    reached = 0
    for point, folder, release in every_point(tmp_path, work):
        release()
        log = open_log(folder, CONFIG)
        found = survivors(log, 100)
        assert found in allowed[reached:], point
        reached = allowed.index(found)
        log.close()
        # I6: a second start finds the same.
        log = open_log(folder, CONFIG)
        assert survivors(log, 100) == found
        log.close()
        shutil.rmtree(folder)
    assert reached == 3


def test_b13_a_kill_at_every_file_operation_of_a_truncation(tmp_path: Path) -> None:
    before, _ = make(tmp_path / "q")
    offset = before[30][0]
    for point, folder, release in every_point(tmp_path, lambda log: log.truncate(offset)):
        release()
        log = open_log(folder, CONFIG)
        assert survivors(log, 100) in (before, before[:30]), point
        log.truncate(offset)
        assert survivors(log, 100) == before[:30], point
        # B13: the offsets can be used again.
        append(log, ("again", "x"))
        assert survivors(log, 100)[-1] == (offset, "again", "x")
        log.close()
        assert files(folder) == expected_files(folder), point
        shutil.rmtree(folder)


def failure_of(log: QueueLog) -> StoreError | None:
    try:
        log.compact(force=True)
    except StoreError as error:
        return error
    return None


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_t10_a_write_that_fails_anywhere_leaves_the_old_view(tmp_path: Path, code: int) -> None:
    before, after = make(tmp_path / "q")
    number = 0
    failed = True
    while failed:
        number += 1
        folder = tmp_path / f"full-{number}"
        shutil.copytree(tmp_path / "q", folder)
        ops = QuickFaultyOps()
        log = open_log(folder, CONFIG, ops=ops)
        start = ops.calls["write"]

        def plan(name: str, count: int, at: int = start + number) -> int:
            return code if name == "write" and count == at else 0

        ops.plan = plan
        error = failure_of(log)
        failed = error is not None
        if failed:
            assert isinstance(error, StoreFullError) == (code == errno.ENOSPC)
            assert str(folder) in str(error)
            assert survivors(log, 100) == before
            assert files(folder) == expected_files(folder)
            # It works again when there is space, without a restart.
            log.compact(force=True)
        assert survivors(log, 100) == after
        append(log, ("more", "x"))
        log.close()
        assert files(folder) == expected_files(folder)
        shutil.rmtree(folder)
    assert number > 7


def test_t10_appends_and_rolls_on_a_full_disk_lose_and_double_nothing(tmp_path: Path) -> None:
    for number in range(1, 16):
        folder = tmp_path / str(number)
        ops = QuickFaultyOps()

        def plan(name: str, count: int, at: int = number) -> int:
            return errno.ENOSPC if name == "write" and at <= count < at + 2 else 0

        ops.plan = plan
        log = open_log(folder, CONFIG, ops=ops)
        errors = 0
        for value in range(10):
            offset = log.next_offset
            while log.next_offset == offset:
                try:
                    append(log, ("k", str(value)))
                    if value % 3 == 0:
                        log.roll()
                except StoreFullError:
                    errors += 1
        assert [one[2] for one in survivors(log)] == [str(value) for value in range(10)]
        log.close()
        log = open_log(folder, CONFIG)
        assert [one[2] for one in survivors(log)] == [str(value) for value in range(10)]
        log.close()
        assert errors


@pytest.mark.parametrize("name", ["rename", "unlink", "open", "sync", "sync_directory"])
def test_t13_a_failing_operation_leaves_one_complete_view_and_no_failed_start(
    tmp_path: Path, name: str
) -> None:
    before, after = make(tmp_path / "q")
    for number in range(1, 40):
        folder = tmp_path / f"{name}-{number}"
        shutil.copytree(tmp_path / "q", folder)
        ops = QuickFaultyOps()
        log = open_log(folder, CONFIG, ops=ops)
        at = ops.calls[name] + number

        def plan(called: str, count: int, at: int = at) -> int:
            return errno.EIO if (called, count) == (name, at) else 0

        ops.plan = plan
        try:
            log.compact(force=True)
        except StoreError:
            assert survivors(log, 100) == before
        reached = ops.calls[name] >= at
        ops.plan = lambda called, count: 0
        if log._files.has_failed:
            with pytest.raises(StoreFailedError):
                append(log, ("no", "x"))
        else:
            log.compact(force=True)
            assert survivors(log, 100) == after
        log.close()
        log = open_log(folder, CONFIG)
        assert survivors(log, 100) in (before, after)
        log.compact(force=True)
        assert survivors(log, 100) == after
        assert files(folder) == expected_files(folder)
        log.close()
        shutil.rmtree(folder)
        if not reached:
            assert number > 1
            return
    raise AssertionError("the compaction never came to its end")


def test_t12_b16_after_a_failed_sync_nothing_more_is_taken(tmp_path: Path) -> None:
    ops = QuickFaultyOps()
    log = open_log(tmp_path / "q", CONFIG, ops=ops)
    append(log, ("a", "1"))
    log.sync()
    append(log, ("b", "1"))
    ops.plan = lambda name, count: errno.EIO if name == "sync" else 0
    with pytest.raises(StoreFailedError, match="could not sync"):
        log.sync()
    ops.plan = lambda name, count: 0
    assert log.durable_offset == 1
    for refused in (log.sync, log.roll, lambda: append(log, ("c", "1"))):
        with pytest.raises(StoreFailedError, match="could not sync"):
            refused()
    assert log.durable_offset == 1
    assert len(survivors(log)) == 2  # reads go on
    log.close()


def test_t11_short_writes_are_completed(tmp_path: Path) -> None:
    ops = QuickFaultyOps()
    ops.plan = lambda name, count: -3 if name == "write" and count % 2 else 0
    log = open_log(tmp_path / "q", CONFIG, ops=ops)
    fill(log)
    whole = survivors(log, 100)
    log.compact(force=True)
    log.close()
    log = open_log(tmp_path / "q", CONFIG)
    assert set(survivors(log, 100)) < set(whole)
    assert log.verify() == []
    log.close()


def test_t14_leftovers_are_neither_served_nor_kept(tmp_path: Path) -> None:
    """B4: what a killed compaction left, larger than what the next one writes."""
    before, after = make(tmp_path / "q")
    folder = tmp_path / "q"
    manifest = read_manifest(folder, FileOps())
    assert manifest is not None
    inside = folder / "compacting"
    inside.mkdir()
    data = next(folder.glob("*.data")).read_bytes()
    for path in (
        inside / "00000000000000000000-9.data",
        folder / f"00000000000000000000-{manifest.generation + 1}.data",
        folder / f"00000000000000000020-{manifest.generation + 2}.data",
        folder / "00000000000000000000.delete",
        folder / "MANIFEST.tmp",
        folder / "unknown",
    ):
        path.write_bytes(data * 3)
    (folder / "00000000000000000001-99.data").touch()
    (folder / "00000000000000000001-99.0.index").touch()
    log = open_log(folder, CONFIG)
    assert files(folder) == expected_files(folder)
    assert survivors(log, 100) == before
    log.compact(force=True)
    assert survivors(log, 100) == after
    log.close()
    log = open_log(folder, CONFIG)
    assert survivors(log, 100) == after
    log.close()


@pytest.mark.parametrize("lost", ["MANIFEST", "MANIFEST.copy"])
@pytest.mark.parametrize("how", ["missing", "flipped", "half", "empty"])
def test_t05_a_damaged_manifest_is_healed_by_its_copy(tmp_path: Path, lost: str, how: str) -> None:
    before, after = make(tmp_path / "q")
    path = tmp_path / "q" / lost
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        changed = bytearray(content)
        changed[40] ^= 4
        path.write_bytes({"flipped": bytes(changed), "half": content[:50], "empty": b""}[how])
    log = open_log(tmp_path / "q", CONFIG)
    assert survivors(log, 100) == before
    log.compact(force=True)
    log.close()
    log = open_log(tmp_path / "q", CONFIG)
    assert survivors(log, 100) == after
    log.close()


def test_without_any_manifest_data_is_not_taken_for_garbage(tmp_path: Path) -> None:
    make(tmp_path / "q")
    names = files(tmp_path / "q")
    for name in ("MANIFEST", "MANIFEST.copy"):
        (tmp_path / "q" / name).unlink()
    with pytest.raises(StoreError, match="MANIFEST is damaged or missing"):
        open_log(tmp_path / "q", CONFIG)
    assert files(tmp_path / "q") == names - {"MANIFEST", "MANIFEST.copy"}


def test_recovery_reads_only_what_lies_behind_the_last_sync(tmp_path: Path) -> None:
    """And keeps what was appended but not synced, when the process alone died."""
    log = open_log(tmp_path / "q")
    append(log, *((f"k{i}", "x" * 1000) for i in range(1000)))
    log.sync()
    append(log, ("tail", "1"))
    read: list[int] = []

    class Counting(FileOps):
        def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
            count = os.preadv(fd, buffers, offset)
            read.append(count)
            return count

    again = open_log(tmp_path / "q", ops=Counting())
    assert sum(read) < 2000
    assert again.next_offset == 1001
    assert again.durable_offset == 1001
    assert decode(again.read(1000, 1, 1).slices) == [(1000, "tail", "1")]
    log.close()
    again.close()


def test_close_stops_a_running_compaction(tmp_path: Path) -> None:
    make(tmp_path / "q")
    log = open_log(tmp_path / "q", CONFIG, clock=TestClock())
    before = survivors(log, 100)

    def close_soon(count: int) -> None:
        log._files.is_closed = True

    with pytest.raises(StoreError, match="is closed"):
        log.compact(force=True, throttle=close_soon)
    log._files.is_closed = False
    assert survivors(log, 100) == before
    assert files(tmp_path / "q") == expected_files(tmp_path / "q")
    log.close()
