"""T16, T18, T20 and what else may go wrong: other processes, forks, limits, topics that change."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import MessageTooLargeError, StoreLockedError
from headrace.store import MessageStore
from tests.store.oracles import History, check_log, check_same_twice, found_in, offset_of
from tests.store.samples import (
    UnsyncedOps,
    append_of,
    body_of,
    log_bytes,
    log_files,
    settings,
    split,
)

ROOT = Path(__file__).parents[2]
SMALL = settings(segment_size=2000, index_file_units=8, flush="async")


@pytest.fixture
def history() -> History:
    return History()


@pytest.mark.parametrize("seconds", [1.0, pytest.param(600, marks=pytest.mark.soak)])
def test_t16_a_writer_at_full_rate_with_rolls_and_readers(tmp_path: Path, seconds: float) -> None:
    """T16: each reader sees offsets rise by one and bytes that were appended, all the time."""
    over, faults = threading.Event(), list[BaseException]()

    def read(store: MessageStore, queue: int) -> None:
        offset = 0
        try:
            while not over.is_set() or offset < store.bounds("lines", queue).max_offset:
                for record in split(store.read("lines", queue, offset, 64).slices):
                    assert offset_of(record) == offset
                    assert body_of(record) == b"%d-%d" % (queue, offset)
                    offset += 1
        except BaseException as error:
            faults.append(error)

    with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
        readers = [threading.Thread(target=read, args=(store, queue % 2)) for queue in range(3)]
        for reader in readers:
            reader.start()
        numbers, end = [0, 0], time.monotonic() + seconds
        # A busy machine takes longer for as many.
        while (time.monotonic() < end or numbers[0] <= 100) and not faults:
            for queue in (0, 1):
                bodies = [b"%d-%d" % (queue, numbers[queue] + n) for n in range(3)]
                store.append([append_of("lines", queue, bodies)]).result()
                numbers[queue] += 3
        over.set()
        for reader in readers:
            reader.join(60)
        assert not faults
        assert len(log_files(tmp_path)) > 10


def test_t18_a_lock_that_a_killed_process_left_is_taken_over(
    tmp_path: Path, history: History
) -> None:
    """T18: the lock is the kernel's, so a file with an old number in it stops nobody."""
    (tmp_path / "lock").write_text("1\n")  # a process that lives, and has nothing to do with it
    with MessageStore.open(tmp_path, settings()) as store:
        assert history.append(store, append_of("lines", 0, [b"x"]))
        with pytest.raises(StoreLockedError, match=f"process {os.getpid()}\n"):
            MessageStore.open(tmp_path, settings())
    assert (tmp_path / "lock").exists()


def test_a_process_that_was_forked_leaves_the_store_alone(tmp_path: Path, history: History) -> None:
    """A fork after open: the child has neither the writer's thread nor a say over the lock."""
    with MessageStore.open(tmp_path, settings()) as store:
        assert history.append(store, append_of("lines", 0, [b"before"]))
        code = (
            "import os, sys; from pathlib import Path\n"
            "from headrace.errors import StoreLockedError\n"
            "from headrace.store import MessageStore\n"
            "store = MessageStore.open(Path(sys.argv[1]))\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    assert store.bounds('lines', 0).max_offset == 1\n"
            "    os._exit(0)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "store.close()\n"
        )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)],
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    with MessageStore.open(tmp_path, settings()) as store:
        assert history.append(store, append_of("lines", 0, [b"after"]))
        assert check_log(history, found_in(store)) == 2


def test_t20_a_topic_that_is_made_again_starts_at_0_and_refuses_nothing(
    tmp_path: Path, history: History
) -> None:
    """T20: neither old data nor refused duplicates, in this process and after a crash."""
    for life in range(3):
        with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
            if life:
                assert store.delete_topic("lines").result() == 2
                assert store.bounds("lines", 0).max_offset == 0
            history = History()
            for queue in (0, 1):
                for _ in range(3):
                    assert history.append(store, append_of("lines", queue, [b"%d" % life]))
            assert check_log(history, found_in(store)) == 6
        if life == 1:
            (tmp_path / "checkpoint").unlink()
        with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
            assert check_log(history, found_in(store)) == 6


def test_t20_the_number_of_queues_changes(tmp_path: Path, history: History) -> None:
    """T20: a queue is what has had a message; more of them, or fewer, change no other."""
    for queues in (2, 7, 3):
        with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
            for queue in range(queues):
                assert history.append(store, append_of("lines", queue, [b"%d" % queues]))
            check_log(history, found_in(store))
    with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
        assert [store.bounds("lines", queue).max_offset for queue in range(8)] == [
            3, 3, 2, 1, 1, 1, 1, 0,
        ]  # fmt: skip


def test_a_record_larger_than_a_segment_has_one_of_its_own(
    tmp_path: Path, history: History
) -> None:
    with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
        for size in (10, 9000, 10, 1900, 2000, 10):
            assert history.append(store, append_of("lines", 0, [b"x" * size]))
        assert check_log(history, found_in(store)) == 6
    with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
        assert check_log(history, found_in(store)) == 6


@pytest.mark.parametrize("size", [0, 1, 32_000])
def test_keys_of_any_size(tmp_path: Path, history: History, size: int) -> None:
    with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
        properties = b"KEYS\x01" + b"k" * size + b"\x02"
        assert history.append(store, append_of("lines", 0, [b"x"], properties))
    with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
        assert check_log(history, found_in(store)) == 1


def test_a_message_over_the_limit_is_refused_and_nothing_else(
    tmp_path: Path, history: History
) -> None:
    with MessageStore.open(tmp_path, settings(max_message_size=1000)) as store:
        assert history.append(store, append_of("lines", 0, [b"x" * 1000]))
        with pytest.raises(MessageTooLargeError):
            store.append([append_of("lines", 0, [b"x" * 100_000])])
        assert history.append(store, append_of("lines", 0, [b"y"]))
        assert check_log(history, found_in(store)) == 2


@contextmanager
def _descriptors(limit: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("queues", [2000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_queues_need_few_descriptors(tmp_path: Path, history: History, queues: int) -> None:
    """Far more queues than files may be open."""
    with (
        _descriptors(len(list(Path("/proc/self/fd").iterdir())) + 60),
        MessageStore.open(tmp_path, settings(flush="async"), ops=UnsyncedOps()) as store,
    ):
        for first in range(0, queues, 100):
            appends = [append_of("wide", first + n, [b"%d" % (first + n)]) for n in range(100)]
            assert history.append(store, *appends)
    with (
        _descriptors(len(list(Path("/proc/self/fd").iterdir())) + 60),
        MessageStore.open(tmp_path, settings(flush="async"), ops=UnsyncedOps()) as store,
    ):
        assert check_log(history, found_in(store)) == queues // 100


def test_a_file_size_limit_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    """EFBIG as the system gives it: refused, and the store goes on when there is room."""
    history = History()
    with MessageStore.open(tmp_path, settings()) as store:
        assert history.append(store, append_of("lines", 0, [b"x" * 1000]))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
            assert not history.append(store, append_of("lines", 0, [b"y" * 5000]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        assert history.append(store, append_of("lines", 0, [b"z"]))
        assert check_log(history, found_in(store)) == 2
        assert len(log_bytes(tmp_path)) == store.statistics().end


def test_the_oracles_find_what_they_are_for(tmp_path: Path) -> None:
    """A check that cannot fail proves nothing: each oracle is shown a store that breaks it."""
    history = History()
    with MessageStore.open(tmp_path, SMALL, ops=UnsyncedOps()) as store:
        for number in range(4):
            assert history.append(store, append_of("lines", 0, [b"%d" % number]))
        found = found_in(store)
    records = found.records["lines", 0]
    key = ("lines", 0)
    broken = {
        "I1": (records[:3], 3),
        "I3": ([*records[:3], records[3] + b"!"], 4),
        "I4: offsets": ([records[1], records[0], *records[2:]], 4),
        "I4: next": (records, 3),
    }
    for oracle, (wrong, next_offset) in broken.items():
        with pytest.raises(AssertionError, match=oracle):
            check_log(history, type(found)({key: wrong}, {key: next_offset}))
    for step in history.steps:
        step.outcome = "open"
    with pytest.raises(AssertionError, match="I2"):
        check_log(history, type(found)({key: [records[0], *records[2:]]}, {key: 4}))
    turns = iter([found, type(found)({}, {})])
    with pytest.raises(AssertionError, match="I6"):
        check_same_twice(lambda: next(turns), lambda: 0)
