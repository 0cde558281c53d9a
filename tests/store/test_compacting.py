"""Which queues are compacted when, and what it costs; a store with everything against a model."""

from __future__ import annotations

import itertools
import random
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings as effort, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.errors import StoreError
from headrace.store import MessageStore
from headrace.store.compaction import QueueLog
from headrace.store.reput import Throttle
from tests.store.compacted import HOUR, TOPIC, Clock, compacting, follow, keyed, opened, put, table
from tests.store.samples import copy_store
from tests.store.test_writer import eventually

SOON = {"maintenance_interval": timedelta(milliseconds=5)}


def fill(store: MessageStore, count: int, queue_id: int = 0, keys: int = 3) -> None:
    for number in range(count):
        put(store, f"k{number % keys}", b"%03d" % number * 10, queue_id)
    store._upkeep.reput.catch_up()


def test_what_is_dirty_enough_is_compacted_by_itself(tmp_path: Path) -> None:
    how = compacting(compaction={"dirty_ratio": 0.5}, **SOON)
    with opened(tmp_path, how=how) as store:
        fill(store, 40)
        assert eventually(lambda: store.statistics().compaction.runs > 0)
        assert eventually(lambda: len(follow(store)) < 12)
        assert table(follow(store)) == {f"k{n % 3}": b"%03d" % n * 10 for n in range(37, 40)}


def test_below_the_ratio_nothing_is_compacted(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 40)
        store.compact(force=True)
        runs = store.statistics().compaction.runs
        fill(store, 4)
        [report] = store.compact()
        assert report.records_in == 0
        assert store.statistics().compaction.runs >= runs


def test_an_active_file_beyond_the_maximum_lag_is_closed_and_compacted(tmp_path: Path) -> None:
    clock = Clock()
    how = compacting(compaction={"file_size": 1 << 20, "max_lag": timedelta(minutes=1)}, **SOON)
    with opened(tmp_path, clock, how) as store:
        fill(store, 10)
        log = store._queue_logs.of(store._catalog.view((TOPIC, 0)))
        assert log.active_since() is not None
        assert store.statistics().compaction.runs == 0
        clock.now += 61_000
        assert eventually(lambda: len(follow(store)) == 3)
        assert log.active_since() is None


def test_write_amplification_is_about_one_over_the_ratio(tmp_path: Path) -> None:
    """At a ratio of a half each byte is written about twice by compactions, not per closed file."""
    chance = random.Random(3)
    keys, size, ratio = 60, 100, 0.5
    how = compacting(
        compaction={"file_size": 4 * (size + 150), "dirty_ratio": ratio},
        segment_size=1 << 20,
        retention=None,
    )
    with opened(tmp_path, how=how) as store:
        for _ in range(60):
            pairs = [(f"k{chance.randrange(keys)}", b"x" * size) for _ in range(8)]
            store.append([keyed(TOPIC, 0, pairs)]).result()
            store.compact()
        statistics = store.statistics()
        assert statistics.compaction.runs >= 5
        amplification = statistics.compaction.bytes_written / statistics.reput.bytes
        assert 0.3 / ratio <= amplification <= 1.2 / ratio
        # Each run rewrites no more than what there is: closed files number ten times as many.
        assert statistics.compaction.runs <= 20
        assert len(table(follow(store))) == keys


def test_an_error_of_one_queue_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = compacting(compaction={"dirty_ratio": 0.1}, **SOON)
    compact = QueueLog.compact

    def failing(self: QueueLog, **options: object) -> object:
        if self.folder.name.startswith("0-"):
            raise StoreError("the disk of queue 0 is broken")
        return compact(self, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueLog, "compact", failing)
    with opened(tmp_path, how=how) as store:
        fill(store, 40, 0)
        fill(store, 40, 1)
        assert eventually(lambda: store.statistics().compaction.failures > 0)
        assert eventually(lambda: len(follow(store, 1)) < 12)
        statistics = store.statistics().compaction
        assert statistics.errors == {f"{TOPIC}@0": "the disk of queue 0 is broken"}
        failures = statistics.failures
        fill(store, 10, 1)
        # It rests: the next try comes after seconds, not with each look.
        assert store.statistics().compaction.failures == failures
        assert len(follow(store, 0)) == 40


def test_there_are_never_two_compactions_in_one_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = compacting(compaction={"dirty_ratio": 0.1, "threads": 3}, **SOON)
    running: dict[Path, int] = {}
    most = 0
    lock = threading.Lock()
    inner = QueueLog._compact

    def counted(self: QueueLog, *arguments: object, **options: object) -> object:
        nonlocal most
        with lock:
            running[self.folder] = running.get(self.folder, 0) + 1
            most = max(most, running[self.folder])
        try:
            return inner(self, *arguments, **options)  # type: ignore[arg-type]
        finally:
            with lock:
                running[self.folder] -= 1

    monkeypatch.setattr(QueueLog, "_compact", counted)
    with opened(tmp_path, how=how) as store:
        for _ in range(5):
            fill(store, 12)
            threads = [threading.Thread(target=store.compact) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert most == 1


def test_the_throttle_spreads_bytes_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    waits: list[float] = []

    def wait(timeout: float | None = None) -> bool:
        waits.append(timeout or 0.0)
        return False

    monkeypatch.setattr(stop, "wait", wait)
    throttle = Throttle(1000, stop)
    for _ in range(4):
        throttle(500)
    assert waits[0] == 0.0
    assert waits[3] == pytest.approx(1.5, abs=0.2)


class StoreWithEverything(RuleBasedStateMachine):
    """A store with retention and compaction, restarts and crashes, against a table of keys."""

    folder: Path
    numbers = itertools.count(1)

    @initialize()
    def open(self) -> None:
        self.path = self.folder / f"store{next(self.numbers)}"
        self.clock = Clock()
        self.store = opened(self.path, self.clock)
        self.newest: list[dict[str, tuple[int, bytes]]] = [{}, {}]
        self.ends = [0, 0]
        self.count = 0

    @rule(queue_id=st.integers(0, 1), key=st.integers(0, 3), delete=st.integers(0, 4))
    def put(self, queue_id: int, key: int, delete: int) -> None:
        self.count += 1
        body = b"" if delete == 0 else b"%05d" % self.count * 20
        offset = put(self.store, f"k{key}", body, queue_id)
        assert offset == self.ends[queue_id]
        self.ends[queue_id] += 1
        self.newest[queue_id][f"k{key}"] = (offset, body)

    @rule(force=st.booleans())
    def compact(self, force: bool) -> None:
        self.store.compact(force=force)

    @rule()
    def hand_on(self) -> None:
        self.store._upkeep.reput.catch_up()

    @rule()
    def expire(self) -> None:
        self.clock.now += 2 * HOUR
        self.store.expire()

    @rule(lose=st.sampled_from(["nothing", "checkpoint"]), crash=st.booleans())
    def restart(self, lose: str, crash: bool) -> None:
        path = self.path
        if crash:
            self.path = copy_store(path, path.with_name(path.name + "x"))
        self.store.close()
        if lose == "checkpoint":
            (self.path / "checkpoint").unlink(missing_ok=True)
        self.store = opened(self.path, self.clock)

    @invariant()
    def readers_see_the_newest_of_each_key(self) -> None:
        for queue_id in range(2):
            kept = follow(self.store, queue_id)
            offsets = [offset for offset, _, _ in kept]
            assert offsets == sorted(set(offsets))
            bounds = self.store.bounds(TOPIC, queue_id)
            assert bounds.max_offset == self.ends[queue_id]
            assert bounds.min_offset == (offsets[0] if offsets else bounds.max_offset)
            live = {key: body for key, (_, body) in self.newest[queue_id].items() if body}
            assert table(kept) == live

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


def test_any_course_of_events_leaves_the_newest_of_each_key(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    StoreWithEverything.folder = tmp_path_factory.mktemp("everything")
    machine = StoreWithEverything.TestCase
    machine.settings = effort(max_examples=25, stateful_step_count=25, deadline=None)
    machine().runTest()
