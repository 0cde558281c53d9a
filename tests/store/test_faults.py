"""A disk that fills up, fails or writes short."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from headrace.errors import StoreError, StoreFailedError, StoreFullError
from headrace.store import MessageStore, StageKey
from tests.store.samples import (
    FaultyOps,
    append_of,
    bodies,
    chunk_of,
    contents,
    log_bytes,
    section_of,
    settings,
)

SMALL = settings(segment_size=1200, index_file_units=4)
KEY = StageKey("job", 1, 1, 0, 0, 0)


class DiskFull(FaultyOps):
    """A disk on which writes fail from the N-th on, until there is space again."""

    def __init__(self, first: int, code: int = errno.ENOSPC) -> None:
        super().__init__()
        self.space = False
        self.plan = lambda name, number: (
            code if name == "write" and number >= first and not self.space else 0
        )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("first", range(1, 14))
def test_t10_a_full_disk_keeps_nothing_half_and_works_again_with_space(
    tmp_path: Path, first: int, code: int
) -> None:
    ops = DiskFull(first, code)
    acknowledged: list[bytes] = []
    with MessageStore.open(tmp_path, SMALL, ops=ops) as store:
        for number in range(10):
            body = b"%d" % number * 100
            future = store.append([append_of("lines", 0, [body])])
            error = future.exception()
            if error is None:
                assert future.result()[0].first_offset == len(acknowledged)
                acknowledged.append(body)
            else:
                assert isinstance(error, StoreFullError)
                assert re.search(r"\d+ bytes free.*make space", str(error), re.DOTALL)
            assert bodies(store, "lines", 0) == acknowledged
        ops.space = True
        [result] = store.append([append_of("lines", 0, [b"again"])]).result()
        assert result.first_offset == len(acknowledged)
        acknowledged.append(b"again")
        assert len(log_bytes(tmp_path)) == store.statistics().end
    with MessageStore.open(tmp_path, SMALL) as store:
        assert bodies(store, "lines", 0) == acknowledged
        assert store.statistics().recovery.cut_bytes == 0


@pytest.mark.parametrize("first", range(1, 12))
def test_t10_a_unit_that_finds_the_disk_full_leaves_no_trace(tmp_path: Path, first: int) -> None:
    ops = DiskFull(1 << 30)
    with MessageStore.open(tmp_path, SMALL, ops=ops) as store:
        store.append([append_of("lines", 0, [b"before"])]).result()
        for queue_id in range(4):
            section = section_of("counts", queue_id, [b"x" * 200] * 3)
            store.stage(KEY, queue_id, chunk_of(section))
        before, held = log_bytes(tmp_path), contents(store)
        start = ops.calls["write"]
        ops.plan = lambda name, number: (
            errno.ENOSPC if name == "write" and number >= start + first else 0
        )
        future = store.commit_unit([KEY], [append_of("commits", 0, [b"1"])])
        if (error := future.exception()) is not None:
            assert isinstance(error, StoreFullError)
            assert log_bytes(tmp_path) == before
            assert contents(store) == held
            ops.plan = lambda name, number: 0
            store.commit_unit([KEY], [append_of("commits", 0, [b"1"])]).result()
        assert bodies(store, "counts", 3) == [b"x" * 200] * 3
    with MessageStore.open(tmp_path, SMALL) as store:
        assert bodies(store, "counts", 0) == [b"x" * 200] * 3


@pytest.mark.parametrize("step", range(1, 6))
@pytest.mark.parametrize("operation", ["open", "sync_directory"])
def test_t13_a_roll_that_cannot_make_its_file_keeps_nothing(
    tmp_path: Path, operation: str, step: int
) -> None:
    ops = FaultyOps()
    with MessageStore.open(tmp_path, SMALL, ops=ops) as store:
        start = ops.calls[operation]
        ops.plan = lambda name, number: (
            errno.ENOSPC if name == operation and number == start + step else 0
        )
        kept = []
        for number in range(40):
            future = store.append([append_of("lines", 0, [b"%d" % number * 50])])
            if future.exception() is None:
                kept.append(b"%d" % number * 50)
        assert len(kept) >= 38
        assert bodies(store, "lines", 0) == kept
    with MessageStore.open(tmp_path, SMALL) as store:
        assert bodies(store, "lines", 0) == kept


def test_the_reserve_of_free_space_is_respected(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, settings(min_free_space=1 << 60)) as store:
        with pytest.raises(StoreFullError):
            store.append([append_of("lines", 0, [b"x"])]).result()
        with pytest.raises(StoreFullError):
            store.stage(KEY, 0, chunk_of(section_of("counts", 0, [b"x"])))
        assert store.staged(KEY) == (0, 0)
        assert store.statistics().failure is None


def test_t11_short_writes_are_finished(tmp_path: Path) -> None:
    ops = FaultyOps()
    ops.plan = lambda name, number: -(50 + number % 90) if name == "write" else 0
    with MessageStore.open(tmp_path, SMALL, ops=ops) as store:
        for number in range(30):
            store.append([append_of("lines", 0, [b"%d" % number * 40])]).result()
        expected = [b"%d" % number * 40 for number in range(30)]
        assert bodies(store, "lines", 0) == expected
    with MessageStore.open(tmp_path, SMALL) as store:
        assert bodies(store, "lines", 0) == expected


def test_t12_a_failed_sync_stops_writing_for_good_while_reads_go_on(tmp_path: Path) -> None:
    ops = FaultyOps()
    store = MessageStore.open(tmp_path, settings(), ops=ops)
    store.append([append_of("lines", 0, [b"kept"])]).result()
    ops.plan = lambda name, number: errno.EIO if name == "sync" else 0
    with pytest.raises(StoreFailedError, match="Input/output error"):
        store.append([append_of("lines", 0, [b"lost"])]).result()
    ops.plan = lambda name, number: 0
    synced = ops.calls["sync"]
    for attempt in (
        store.append([append_of("lines", 0, [b"late"])]),
        store.commit_unit([], [append_of("lines", 0, [b"late"])]),
        store.delete_topic("lines"),
    ):
        with pytest.raises(StoreFailedError):
            attempt.result()
    assert ops.calls["sync"] == synced  # a second sync would claim what the first one lost
    assert bodies(store, "lines", 0) == [b"kept"]
    assert "Input/output error" in (store.statistics().failure or "")
    store.close()
    with MessageStore.open(tmp_path, settings()) as store:
        assert bodies(store, "lines", 0)[0] == b"kept"
        store.append([append_of("lines", 0, [b"after"])]).result()


def test_t11_a_failed_write_is_cut_off_again_and_the_log_goes_on(tmp_path: Path) -> None:
    ops = FaultyOps()
    with MessageStore.open(tmp_path, settings(), ops=ops) as store:
        store.append([append_of("lines", 0, [b"kept"])]).result()
        ops.plan = lambda name, number: errno.EIO if name == "write" else 0
        error = store.append([append_of("lines", 0, [b"lost"])]).exception()
        assert type(error) is StoreError
        assert "Input/output error" in str(error)
        ops.plan = lambda name, number: 0
        [result] = store.append([append_of("lines", 0, [b"next"])]).result()
        assert result.first_offset == 1
        assert store.statistics().failure is None
    with MessageStore.open(tmp_path, settings()) as store:
        assert bodies(store, "lines", 0) == [b"kept", b"next"]
        assert store.statistics().recovery.cut_bytes == 0


def test_t12_a_failed_sync_in_the_background_stops_async_writing(tmp_path: Path) -> None:
    ops = FaultyOps()
    with MessageStore.open(tmp_path, settings(flush="async"), ops=ops) as store:
        ops.plan = lambda name, number: errno.EIO if name == "sync" else 0
        store.append([append_of("lines", 0, [b"x"])]).result()
        futures = (store.append([append_of("lines", 0, [b"x"])]) for _ in range(10_000))
        error = next(filter(None, (future.exception() for future in futures)))
        assert isinstance(error, StoreFailedError)


def test_t11_a_cut_that_fails_stops_writing_and_recovery_cleans_up(tmp_path: Path) -> None:
    ops = FaultyOps()
    with MessageStore.open(tmp_path, settings(), ops=ops) as store:
        store.append([append_of("lines", 0, [b"kept"])]).result()
        start = ops.calls["write"]
        ops.plan = lambda name, number: (
            errno.ENOSPC if (name == "write" and number > start) or name == "truncate" else 0
        )
        with pytest.raises(StoreFailedError, match="only then it is known what was kept"):
            store.append([append_of("lines", 0, [b"x" * 500])]).result()
        ops.plan = lambda name, number: 0
        with pytest.raises(StoreFailedError):
            store.append([append_of("lines", 0, [b"y"])]).result()
    with MessageStore.open(tmp_path, settings()) as store:
        assert bodies(store, "lines", 0) == [b"kept"]
        assert store.statistics().recovery.cut_bytes > 0


def test_t10_staging_on_a_full_disk_keeps_nothing_half(tmp_path: Path) -> None:
    ops = DiskFull(2)
    with MessageStore.open(tmp_path, settings(), ops=ops) as store:
        store.stage(KEY, 0, chunk_of(section_of("counts", 0, [b"a"])))
        for _ in range(2):
            with pytest.raises(StoreFullError):
                store.stage(KEY, 1, chunk_of(section_of("counts", 0, [b"b" * 99])))
        assert store.staged(KEY) == (1, 1)
        ops.space = True
        store.stage(KEY, 1, chunk_of(section_of("counts", 0, [b"c"])))
        store.commit_unit([KEY]).result()
        assert bodies(store, "counts", 0) == [b"a", b"c"]


@pytest.mark.parametrize("operation", ["write", "sync", "rename", "open", "sync_directory"])
def test_t13_a_checkpoint_that_fails_costs_only_time(tmp_path: Path, operation: str) -> None:
    with MessageStore.open(tmp_path, SMALL) as store:
        store.append([append_of("lines", 0, [b"x"] * 3)]).result()
    ops = FaultyOps()
    store = MessageStore.open(tmp_path, settings(index_file_units=4, flush="async"), ops=ops)
    store.append([append_of("lines", 0, [b"y"] * 9)]).result()
    held = contents(store)
    store._log.sync()
    ops.plan = lambda name, number: errno.EIO if name == operation else 0
    store.close()
    with MessageStore.open(tmp_path, SMALL) as store:
        assert contents(store) == held
        assert store.statistics().recovery.checked_bytes > 0


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = MessageStore.open(tmp_path, settings())
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.append([append_of("lines", 0, [b"x"])])
