"""T10 to T13 and T15 on the commit log: a disk that fails at any operation, a clock that jumps."""

from __future__ import annotations

import errno
import itertools
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.store import MessageStore, StoreSettings
from tests.store.faulty_files import FailingAt
from tests.store.oracles import Found, History, check_log, check_same_twice, found_in
from tests.store.samples import UnsyncedOps, append_of, log_bytes, settings

SMALL = settings(
    segment_size=900, index_file_units=4, checkpoint_interval=timedelta(hours=1), flush="sync"
)


#: The same with every unit beside the log, its room often too small.
BESIDE = replace(SMALL, large_unit=1)


def write(store: MessageStore, history: History, numbers: Iterator[int], rounds: int) -> int:
    """Append to two queues and commit units, over several segments; what was acknowledged."""
    done = 0
    for number in itertools.islice(numbers, rounds):
        bodies = [b"%d" % number * 20] * 2
        if number % 3 == 2:
            parts = [append_of("counts", queue, [b"%d" % number]) for queue in range(3)]
            done += history.commit(store, *parts)
        else:
            done += history.append(store, append_of("lines", number % 2, bodies))
    return done


def run(path: Path, ops: FailingAt, config: StoreSettings) -> History:
    """Write, let operations fail, write on when they do no more, and read everything back."""
    history, numbers = History(), itertools.count()
    store = MessageStore.open(path, config, ops=ops)
    ops.armed = True
    try:
        write(store, history, numbers, 9)
        check_log(history, found_in(store))  # reads go on
        ops.armed = False
        if store.statistics().failure is None:
            assert write(store, history, numbers, 3) == 3
        else:
            assert write(store, history, numbers, 3) == 0
            fatal = {"sync", "truncate", "unlink"}
            # Whether a unit that was written beside the log has its name there is unknown then.
            assert ops.failed & (fatal | {"sync_directory"} if config is BESIDE else fatal)
        check_log(history, found_in(store))
    finally:
        store.close()
    return history


def check(path: Path, history: History) -> None:
    def read() -> Found:
        with MessageStore.open(path, SMALL, ops=UnsyncedOps()) as store:
            found = found_in(store)
            check_log(history, found)
            return found

    # What was being written when a sync failed may be there; then it stays.
    check_same_twice(read, lambda: log_bytes(path))
    with MessageStore.open(path, SMALL, ops=UnsyncedOps()) as store:
        write(store, History(), itertools.count(100), 3)


OPERATIONS = {
    "write": 14,
    "sync": 14,
    "open": 6,
    "sync_directory": 6,
    "truncate": 1,
    "unlink": 1,
}


#: Both errors once and for good; the other half of the combinations is for `make soak`.
CODES = [
    (errno.EIO, False),
    (errno.ENOSPC, True),
    pytest.param(errno.EIO, True, marks=pytest.mark.soak),
    pytest.param(errno.ENOSPC, False, marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("code", "for_good"), CODES)
@pytest.mark.parametrize("name", list(OPERATIONS))
@pytest.mark.parametrize("config", [SMALL, BESIDE], ids=["within", "beside"])
def test_t10_t13_any_operation_fails(
    tmp_path: Path, name: str, for_good: bool, code: int, config: StoreSettings
) -> None:
    """T10 to T13: the N-th operation of a kind fails, once or from then on, for every N."""
    failed = 0
    for number in range(1, OPERATIONS[name] + 1):
        path = tmp_path / f"{number}"
        ops = FailingAt(name, number, code, for_good=for_good)
        if name in ("truncate", "unlink"):
            # They are needed only to undo: let a write fail first.
            ops.also = ("write", 4)
        history = run(path, ops, config)
        failed += bool(ops.failed)
        check(path, history)
    assert failed


def test_t11_a_write_that_fails_in_the_middle_uses_no_offset(tmp_path: Path) -> None:
    """T11: half a write, then an error: the bytes are gone, the offset is free."""
    history = History()
    ops = FailingAt("write", 3, errno.EIO, for_good=False, partial=True)
    ops.armed = True
    with MessageStore.open(tmp_path, settings(), ops=ops) as store:
        outcomes = [history.append(store, append_of("lines", 0, [b"x" * 99])) for _ in range(6)]
        assert outcomes == [True, True, False, True, True, True]
        assert check_log(history, found_in(store)) == 5
        assert len(log_bytes(tmp_path)) == store.statistics().end
    check(tmp_path, history)


def test_t11_signals_interrupt_writes(tmp_path: Path) -> None:
    """T11: system calls that are interrupted go on."""
    history, hits = History(), 0

    def hit(_number: int, _frame: object) -> None:
        nonlocal hits
        hits += 1

    before = signal.signal(signal.SIGALRM, hit)
    try:
        with MessageStore.open(tmp_path, settings(flush="async")) as store:
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            for number in range(200):
                # Here the caller's thread writes: the one that is interrupted.
                history.append(store, append_of("lines", 0, [b"%d" % number * 5000]))
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert check_log(history, found_in(store)) == 200
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits > 10
    check(tmp_path, history)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_t12_after_one_failed_sync_nothing_is_acknowledged(tmp_path: Path, flush: str) -> None:
    """T12: no later answer on that log, and no second sync that would claim success."""
    history = History()
    store = MessageStore.open(
        tmp_path,
        settings(flush=flush, flush_interval=timedelta(milliseconds=1)),
        ops=(ops := FailingAt("sync", 1, errno.EIO, for_good=False)),
    )
    assert history.append(store, append_of("lines", 0, [b"kept"]), durable=flush == "sync")
    ops.armed = True
    over = threading.Event()
    for _ in range(10_000):
        if not history.append(store, append_of("lines", 0, [b"x"]), durable=False):
            break
        over.wait(0.001)
    assert store.statistics().failure is not None
    synced = ops.calls["sync"]
    for _ in range(3):
        assert not history.append(store, append_of("lines", 0, [b"late"]))
        assert not history.commit(store, append_of("lines", 0, [b"late"]))
    store.close()
    assert ops.calls["sync"] == synced
    check(tmp_path, history)


JUMPS = {
    "back": [0, 1, -3_600_000, -3_600_000, 5],
    "forward": [0, 1, 315_360_000_000, 5, 6],
    "equal": [0, 0, 0, 0, 0],
    "zigzag": [0, 86_400_000, -86_400_000, 86_400_000, -1],
}


@pytest.mark.parametrize("jump", list(JUMPS))
def test_t15_the_clock_jumps(tmp_path: Path, jump: str) -> None:
    """T15: offsets, recovery and searches go by order; store times never fall."""
    history, start = History(), 1_700_000_000_000
    for step in JUMPS[jump]:
        clock = itertools.repeat(start + step).__next__
        with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps(), clock=clock) as store:
            for _ in range(3):
                assert history.append(store, append_of("lines", 0, [b"x" * 50]))
            found = found_in(store)
            assert check_log(history, found) == len(history.steps)
            times = [store.store_time("lines", 0, offset) for offset in range(len(history.steps))]
            assert times == sorted(times)
            assert store.offset_at("lines", 0, 0) == 0
            assert store.offset_at("lines", 0, times[-1] + 1) == len(history.steps)
    check(tmp_path, history)
