"""The contract of state stores: whatever keeps them, they behave alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.transactions import StateSummary
from headrace.runtime import LayeredStore, MemoryStore, StateStore, StorePlace
from headrace.runtime.state.interface import Attempted, ChangeSet
from headrace.runtime.state.local import LocalCopies, StateTopicBlock
from headrace.runtime.state.store import CopiedStore, MemoryBase, StateBase, decode_entries
from headrace.runtime.testing.job import BatchCopies, MemoryCopies, SavedChanges

Changes = dict[bytes, bytes | None]


class ReplayedStore(LayeredStore):
    """A user's own: reads the whole topic in each task, and keeps nothing."""

    def __init__(self, place: StorePlace) -> None:
        super().__init__()
        self._place = place

    def opened(self, commit: StateSummary | None, lineage: list[list[int]]) -> StateBase:
        base = MemoryBase()
        for keys, values in self._place.entries(0, commit.end_offset if commit else 0):
            for key, value in zip(keys, values, strict=True):
                if value is None:
                    base.entries.pop(key, None)
                else:
                    base.entries[key] = value
        self.restored = commit.end_offset if commit else 0
        return base

    def kept(self, attempt: Attempted, base: StateSummary | None, changes: ChangeSet) -> None:
        pass


class Topic:
    """A state topic of one partition, in memory."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes | None]] = []

    def read(
        self, store: str, partition: int, start: int, end: int, batch: int | None = None
    ) -> Iterator[StateTopicBlock]:
        part = self.messages[start:end]
        if part:
            yield StateTopicBlock([key for key, _ in part], [value for _, value in part], end)


class Engine:
    """What the engine does with a store, and a commit topic of one partition."""

    def __init__(self, make: Callable[[Engine], StateStore], folder: Path) -> None:
        self._make = make
        self.folder = folder
        self.topic = Topic()
        self.memory = MemoryBase()
        self.copies = MemoryCopies()
        self.saved: dict[int, SavedChanges] = {}
        self.number = 0
        self.batch = 0
        self.epoch = 1
        self.lineage = [[1, 1]]
        self.commit_record: StateSummary | None = None

    def begin(self) -> StateStore:
        """Give a task its store."""
        self.number += 1
        store = self._make(self)
        store.recover(self.commit_record, self.lineage)
        store.wait_until_ready()
        return store

    def end(self, store: StateStore, *, commits: bool) -> ChangeSet:
        """End the attempt; what it changed counts if it is committed."""
        attempt = (self.epoch, self.batch + 1, self.number)
        changes = store.persist(attempt)
        store.close()
        if not commits:
            return changes
        self.batch += 1
        if changes.keys:
            self.topic.messages += zip(changes.keys, changes.values, strict=True)
            self.commit_record = StateSummary(
                store="op",
                partition=0,
                count=changes.count,
                checksum=changes.checksum,
                size=changes.size,
                epoch=self.epoch,
                batch=self.batch,
                attempt=self.number,
                end_offset=len(self.topic.messages),
            )
            if self.number in self.saved:
                self.copies.base("op", 0).apply(changes)
        return changes

    def run(self, changes: Changes, *, commits: bool = True) -> ChangeSet:
        """Do one batch."""
        store = self.begin()
        store.put_many(list(changes), list(changes.values()))
        return self.end(store, commits=commits)

    def take_over(self) -> None:
        """Begin a new epoch, as a driver that takes a job over does."""
        self.epoch += 1
        self.lineage = [*self.lineage, [self.epoch, self.batch + 1]]

    def content(self) -> dict[bytes, bytes]:
        """Look into the store as the next task would see it."""
        store = self.begin()
        try:
            return dict(store.scan())
        finally:
            store.close()


def rocks(engine: Engine) -> StateStore:
    return CopiedStore(LocalCopies(engine.folder, engine.topic), "op", 0)


def in_memory(engine: Engine) -> StateStore:
    return MemoryStore(engine.memory)


def of_test_driver(engine: Engine) -> StateStore:
    saved = engine.saved[engine.number] = SavedChanges()
    return CopiedStore(BatchCopies(engine.copies, saved), "op", 0)


def of_a_user(engine: Engine) -> StateStore:
    def entries(start: int, end: int) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
        for block in engine.topic.read("op", 0, start, end):
            yield block.keys, block.values

    return ReplayedStore(StorePlace("job", "op", 0, engine.folder, entries))


KINDS = [rocks, in_memory, of_test_driver, of_a_user]
#: Those that can be made anew from the topic, on another machine.
FROM_TOPIC = [rocks, of_a_user]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def engine(request: Any, tmp_path: Path) -> Engine:
    return Engine(request.param, tmp_path)


def test_batch_reads_what_it_writes(engine: Engine) -> None:
    engine.run({b"a": b"1", b"b": b"2", b"c": b"3"})
    store = engine.begin()
    assert store.get(b"a") == b"1"
    store.put(b"a", b"10")
    store.delete(b"b")
    store.put_many([b"d", b"c"], [b"4", None])
    store.add_many([b"e"], [b"5"])
    assert store.get_many([b"a", b"b", b"c", b"d", b"e"]) == [b"10", None, None, b"4", b"5"]
    assert store.get(b"nothing") is None
    assert list(store.scan()) == [(b"a", b"10"), (b"d", b"4"), (b"e", b"5")]
    store.delete(b"never there")
    store.close()


def test_ranges_are_in_order_and_end_before_their_stop(engine: Engine) -> None:
    engine.run({b"w1": b"a", b"w2": b"b", b"w4": b"d", b"x": b"y"})
    store = engine.begin()
    store.put_many([b"w3", b"w2", b"w0"], [b"c", None, b"-"])
    assert list(store.range(b"w1", b"w4")) == [(b"w1", b"a"), (b"w3", b"c")]
    assert list(store.range(b"w", b"x")) == [
        (b"w0", b"-"),
        (b"w1", b"a"),
        (b"w3", b"c"),
        (b"w4", b"d"),
    ]
    store.delete(b"w1")
    assert list(store.range(b"w1", b"w3")) == []
    store.close()


def test_search_below_a_watermark_gives_what_is_older_oldest_first(engine: Engine) -> None:
    def entry(time: int, rest: bytes) -> bytes:
        return b"t" + StateStore.time_bytes(time) + rest

    engine.run({entry(20, b"b"): b"2", entry(-5, b"a"): b"1", entry(30, b"c"): b"3", b"u": b""})
    store = engine.begin()
    store.put(entry(7, b"new"), b"4")
    store.delete(entry(20, b"b"))
    assert list(store.search_below(b"t", 30)) == [(-5, b"a", b"1"), (7, b"new", b"4")]
    assert list(store.search_below(b"t", -5)) == []
    store.close()


def test_store_may_be_changed_while_it_is_walked(engine: Engine) -> None:
    keys = [b"t%d" % number for number in range(5)]
    engine.run(dict.fromkeys(keys, b"x"))
    store = engine.begin()
    for key, _ in store.range(b"t", b"u"):
        store.delete(key)
    engine.end(store, commits=True)
    assert engine.content() == {}


def test_next_batch_sees_what_was_committed(engine: Engine) -> None:
    engine.run({b"a": b"1", b"b": b"2"})
    engine.run({b"a": None, b"c": b"3"})
    assert engine.content() == {b"b": b"2", b"c": b"3"}


def test_attempt_that_no_commit_names_has_never_happened(engine: Engine) -> None:
    engine.run({b"a": b"1"})
    for _ in range(2):
        engine.run({b"a": b"lost", b"lost": b"lost"}, commits=False)
    assert engine.content() == {b"a": b"1"}
    engine.run({b"b": b"2"})
    engine.run({b"a": b"lost"}, commits=False)
    assert engine.content() == {b"a": b"1", b"b": b"2"}


def test_other_driver_goes_on_from_the_last_commit(engine: Engine) -> None:
    engine.run({b"a": b"1"})
    engine.run({b"a": b"lost"}, commits=False)
    engine.take_over()
    engine.run({b"b": b"2"})
    assert engine.content() == {b"a": b"1", b"b": b"2"}


def test_only_what_changed_is_persisted_each_key_once(engine: Engine) -> None:
    first = engine.run({b"a": b"1", b"b": b"2"})
    store = engine.begin()
    store.put(b"a", b"9")
    store.put(b"a", b"1")
    store.put(b"b", b"3")
    store.put(b"new", b"")
    store.delete(b"new")
    changes = engine.end(store, commits=True)
    assert (changes.keys, changes.values) == ([b"b"], [b"3"])
    assert decode_entries(changes.bodies) == ([b"b"], [b"3"])
    assert (changes.count, changes.size) == (2, first.size)
    gone = engine.run({b"a": None, b"b": None})
    assert sorted(zip(gone.keys, gone.values, strict=True)) == [(b"a", None), (b"b", None)]
    assert (gone.count, gone.checksum, gone.size) == (0, 0, 0)
    assert engine.run({}).keys == []


@pytest.mark.parametrize("kind", FROM_TOPIC, ids=lambda kind: kind.__name__)
def test_store_is_read_from_its_topic_on_another_machine(
    kind: Callable[[Engine], StateStore], tmp_path: Path
) -> None:
    engine = Engine(kind, tmp_path / "one")
    engine.run({b"a": b"1", b"b": b"2"})
    engine.run({b"a": None, b"c": b"3"})
    engine.folder = tmp_path / "other"
    store = engine.begin()
    assert dict(store.scan()) == {b"b": b"2", b"c": b"3"}
    assert store.restored == 4
    engine.end(store, commits=True)
    engine.run({b"d": b"4"})
    # The first machine has an old copy.
    engine.folder = tmp_path / "one"
    assert engine.content() == {b"b": b"2", b"c": b"3", b"d": b"4"}
