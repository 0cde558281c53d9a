"""Large units are written beside the log: who appends does not wait for them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import StagedPartMissingError, StoreError, StoreFailedError
from headrace.store import MessageStore, StageKey, UnitResult
from headrace.store.catalog import QueueCatalog
from headrace.store.damage.examination import examine_store
from headrace.store.fileops import Buffer
from tests.store.faulty_files import Killed
from tests.store.power import Disk
from tests.store.replication.pair import InProcess, segments
from tests.store.samples import (
    UnsyncedOps,
    append_of,
    bodies,
    chunk_of,
    contents,
    log_files,
    section_of,
    settings,
)

BESIDE = settings(large_unit=2000, flush="async")
QUEUES = range(3)


def key(batch: int = 1) -> StageKey:
    return StageKey("count", 1, batch, 0, 0, 0)


def stage(store: MessageStore, batch: int = 1, size: int = 1000) -> None:
    """Stage a record of some size for each of three queues."""
    bodies = [b"%d" % batch + b"." * size]
    store.stage(key(batch), 0, chunk_of(*(section_of("counts", q, bodies) for q in QUEUES)))


def commit(store: MessageStore, batch: int = 1) -> Future[UnitResult]:
    return store.commit_unit([key(batch)], [append_of("commits", 0, [b"%d" % batch])])


def seen(store: MessageStore) -> list[list[int]]:
    """Batches in each queue that units write to."""
    queues = [("commits", 0), *(("counts", queue) for queue in QUEUES)]
    return [[int(body.rstrip(b".")) for body in bodies(store, *queue)] for queue in queues]


class WaitingOps(UnsyncedOps):
    """Does something before each write to a file beside the log, in the middle of a unit."""

    def __init__(self) -> None:
        self.fds: set[int] = set()
        #: Files beside the log so far.
        self.tries = 0
        self.before: Callable[[], None] = lambda: None

    def hold(self) -> tuple[threading.Event, threading.Event]:
        """Let writes wait; gives what tells that one does, and what lets them go on."""
        begun, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            begun.set()
            assert go_on.wait(30)

        self.before = wait
        return begun, go_on

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self.fds.discard(fd)
        if path.suffix == ".beside":
            self.fds.add(fd)
            self.tries += 1
        return fd

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if fd in self.fds and offset:
            self.before()
        return super().pwritev(fd, buffers, offset)


@pytest.fixture
def ops() -> WaitingOps:
    return WaitingOps()


@pytest.fixture
def store(tmp_path: Path, ops: WaitingOps) -> Iterator[MessageStore]:
    with MessageStore.open(tmp_path, BESIDE, ops=ops) as store:
        yield store


def test_appends_are_answered_and_read_while_a_large_unit_is_written(
    store: MessageStore, ops: WaitingOps
) -> None:
    begun, go_on = ops.hold()
    stage(store)
    unit = commit(store)
    assert begun.wait(30)
    for number in range(3):
        store.append([append_of("lines", 0, [b"%d" % number])]).result(10)
    assert bodies(store, "lines", 0) == [b"0", b"1", b"2"]
    small = store.commit_unit([], [append_of("others", 0, [b"small"])])
    assert small.result(10).first_offsets == {("others", 0): 0}
    cut = store.cut({("lines", 0): 0, ("counts", 0): 0})
    assert (cut.ends, unit.done()) == ({("lines", 0): 3, ("counts", 0): 0}, False)
    go_on.set()
    result = unit.result(10)
    assert seen(store) == [[1], [1], [1], [1]]
    assert store.statistics().end == store.statistics().synced == result.position
    first = store.cut({("lines", 0): 0, ("counts", 0): 0}, limit=3)
    assert first.ends == {("lines", 0): 3, ("counts", 0): 0}, "the unit is behind what came first"


#: Which tries of a unit are disturbed, and how many there are; then it is written within the log.
DISTURBED = {
    "none": ([], 1),
    "the first": ([1], 2),
    "all": ([1, 2], 2),
}


@pytest.mark.parametrize("how", ["room", "queue"])
@pytest.mark.parametrize("name", list(DISTURBED))
def test_a_unit_that_no_longer_fits_is_written_anew(
    tmp_path: Path, store: MessageStore, ops: WaitingOps, name: str, how: str
) -> None:
    disturbed, tries = DISTURBED[name]
    left = list(disturbed)

    def before() -> None:
        if ops.tries in left:
            left.remove(ops.tries)
            # More than there is room for, or the next offset of a queue of the unit.
            what = ("lines", [b"x" * 9000]) if how == "room" else ("counts", [b"7"])
            store.append([append_of(what[0], 0, what[1])]).result(10)

    ops.before = before
    stage(store)
    result = commit(store).result(10)
    assert (ops.tries, left) == (tries, [])
    others = len(disturbed) if how == "queue" else 0
    assert seen(store) == [[1], [7] * others + [1], [1], [1]]
    assert result.first_offsets["counts", 0] == others
    ops.before = lambda: None
    stage(store, 2)
    commit(store, 2).result(10)
    held = contents(store)
    store.close()
    assert [path.name for path in (tmp_path / "log").glob("*.beside")] == []
    (tmp_path / "checkpoint").unlink()
    with MessageStore.open(tmp_path, BESIDE) as again:
        assert contents(again) == held
        assert again.statistics().recovery.rebuilt


def test_a_unit_that_would_take_offsets_of_others_is_refused_by_the_log(
    tmp_path: Path, store: MessageStore, ops: WaitingOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that does not look at offsets again shows a record twice, and loses another."""
    expected = QueueCatalog.next_offset
    monkeypatch.setattr(QueueCatalog, "next_offset", lambda self, key: 0)

    def before() -> None:
        store.append([append_of("counts", 0, [b"7"])]).result(10)

    ops.before = before
    stage(store)
    commit(store).result(10)
    monkeypatch.setattr(QueueCatalog, "next_offset", expected)
    with pytest.raises(AssertionError):
        bodies(store, "counts", 0)


def test_what_fails_leaves_the_log_as_it_was(tmp_path: Path, store: MessageStore) -> None:
    store.append([append_of("lines", 0, [b"x"])]).result()
    stage(store)
    [part] = (tmp_path / "staging").glob("*/*.part")
    whole = part.read_bytes()
    part.write_bytes(whole.replace(b"....", b"..#.", 1))
    with pytest.raises(StagedPartMissingError, match="are not what was staged"):
        commit(store).result(10)
    part.write_bytes(whole)
    assert [path.name for path in (tmp_path / "log").iterdir()] == [log_files(tmp_path)[0].name]
    assert store.queues() == [("lines", 0)]
    commit(store).result(10)
    assert seen(store) == [[1], [1], [1], [1]]


def test_a_store_that_is_closed_keeps_nothing_of_a_unit_that_is_being_written(
    tmp_path: Path, ops: WaitingOps
) -> None:
    store = MessageStore.open(tmp_path, replace(BESIDE, large_unit=1), ops=ops)
    begun, go_on = ops.hold()
    stage(store)
    unit = commit(store)
    assert begun.wait(30)
    closing = threading.Thread(target=store.close)
    closing.start()
    while not store._beside._closed:
        time.sleep(0.001)
    go_on.set()
    closing.join(30)
    with pytest.raises(StoreError, match="closed"):
        unit.result(10)
    with MessageStore.open(tmp_path, BESIDE) as again:
        assert (again.queues(), again.staged(key())) == ([], (1, 3))


def test_a_name_that_was_given_just_before_a_death_is_on_disk_before_anything_is_added(
    tmp_path: Path,
) -> None:
    class DyingDisk(Disk):
        dies = False

        def sync_directory(self, path: Path) -> None:
            if self.dies and path.name == "log":
                raise Killed
            super().sync_directory(path)

    for seed in range(4):
        root, target = tmp_path / f"live-{seed}", tmp_path / f"found-{seed}"
        disk = DyingDisk()
        first = MessageStore.open(root, replace(BESIDE, large_unit=1), ops=disk)
        stage(first)
        disk.dies = True
        with pytest.raises(StoreFailedError):
            commit(first).result(10)
        disk.dies = False
        first._lock.release()
        with MessageStore.open(root, settings(flush="sync"), ops=disk) as store:
            assert seen(store) == [[1], [1], [1], [1]]
            store.append([append_of("lines", 0, [b"acknowledged"])]).result()
            disk.cut_power(root, target, random.Random(seed))
        with MessageStore.open(target, settings()) as store:
            assert bodies(store, "lines", 0) == [b"acknowledged"]
            assert seen(store) == [[1], [1], [1], [1]]


def test_a_follower_and_an_examination_find_nothing_new_in_such_a_log(tmp_path: Path) -> None:
    config = replace(BESIDE, large_unit=1, segment_size=9000, min_free_space=0)
    with MessageStore.open(tmp_path / "a", config, ops=UnsyncedOps()) as primary:
        follower = InProcess(tmp_path / "b", lambda: primary, max_bytes=3000)
        for batch in range(8):
            primary.append([append_of("lines", 0, [b"x" * 200 * batch])]).result()
            stage(primary, batch)
            commit(primary, batch).result(10)
            if batch % 3 == 2:
                follower.catch_up()
        follower.catch_up()
        assert seen(follower.store) == seen(primary) == [list(range(8))] * 4
        follower.store.close()
    assert segments(tmp_path / "b") == segments(tmp_path / "a")
    assert len(segments(tmp_path / "a")) > 8
    assert examine_store(tmp_path / "a").damage == []


def test_readers_see_whole_units_while_others_append(tmp_path: Path) -> None:
    config = replace(BESIDE, large_unit=1, segment_size=100_000, index_file_units=16)
    with MessageStore.open(tmp_path, config, ops=UnsyncedOps()) as store:
        stop, wrong, sent = threading.Event(), [], 0
        queues = [("counts", queue) for queue in QUEUES]

        def watch() -> None:
            while not stop.is_set():
                cut = store.cut(dict.fromkeys(queues, 0))
                if len(set(cut.ends.values())) != 1:
                    wrong.append(f"a cut through a unit: {cut.ends}")

        def send() -> None:
            nonlocal sent
            while not stop.is_set():
                store.append([append_of("lines", 0, [b"%d" % sent])]).result(10)
                sent += 1

        threads = [threading.Thread(target=work) for work in (watch, send)]
        for thread in threads:
            thread.start()
        for batch in range(20):
            stage(store, batch)
            commit(store, batch).result(10)
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert seen(store) == [list(range(20))] * 4
        assert bodies(store, "lines", 0) == [b"%d" % number for number in range(sent)]
        held = contents(store)
    with MessageStore.open(tmp_path, config) as store:
        assert contents(store) == held
