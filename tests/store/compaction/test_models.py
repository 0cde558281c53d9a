"""A log against a model: any appends, rolls, compactions, restarts; writers and readers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from headrace.store.compaction import QueueLog
from headrace.store.compaction.log_files import OpenFiles
from headrace.store.compaction.manifest import ReadStatus
from tests.store.compaction.samples import (
    Record,
    TestClock,
    append,
    decode,
    open_log,
    records_of,
    settings,
    survivors,
)

RETENTION = 100


@dataclass
class Model:
    """What a log must hold, by the rules alone."""

    records: list[Record] = field(default_factory=list)
    #: Where the active file begins.
    active_from: int = 0
    clean_until: int = 0
    #: When deletes were first met.
    met: dict[int, int] = field(default_factory=dict)
    next_offset: int = 0

    def append(self, records: list[Record]) -> None:
        self.records += records
        self.next_offset = records[-1][0] + 1

    def roll(self) -> None:
        self.active_from = self.next_offset

    def compact(self, now: int) -> None:
        closed = [one for one in self.records if one[0] < self.active_from]
        latest = {one[1]: one[0] for one in closed}
        kept = []
        for record in closed:
            offset, key, value = record
            if key is not None and latest[key] > offset:
                continue
            if value is None:
                first = self.met.setdefault(offset, now)
                if now - first >= RETENTION:
                    continue
            kept.append(record)
        self.records = kept + [one for one in self.records if one[0] >= self.active_from]

    def truncate(self, offset: int) -> None:
        if offset < self.next_offset:
            self.records = [one for one in self.records if one[0] < offset]
            self.met = {key: met for key, met in self.met.items() if key < offset}
            self.next_offset = self.active_from = offset


KEYS = st.sampled_from(["a", "b", "c", "d", "e", "f", None])
VALUES = st.one_of(st.none(), st.text(alphabet="xyz", min_size=1, max_size=300))
STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(st.tuples(st.integers(0, 3), KEYS, VALUES), min_size=1, max_size=12),
    ),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("compact"), st.sampled_from([None, 1, 2, 3, 50])),
    st.tuples(st.just("wait"), st.integers(1, RETENTION)),
    st.tuples(st.just("restart"), st.booleans()),
    st.tuples(st.just("truncate"), st.integers(0, 5)),
)


@hypothesis_settings(max_examples=80, deadline=None)
@given(steps=st.lists(STEPS, max_size=25), file_size=st.sampled_from([1, 700, 1 << 20]))
def test_a_log_holds_what_the_model_holds(steps: list[tuple[str, object]], file_size: int) -> None:
    """Behaviours 13, 14, 18, 25 to 27 for any course of events."""
    clock = TestClock()
    config = settings(tombstone_retention=timedelta(milliseconds=RETENTION), file_size=file_size)
    with TemporaryDirectory() as folder:
        log, model = open_log(Path(folder) / "q", config, clock=clock), Model()
        for name, argument in steps:
            log = _apply(log, model, clock, name, argument)
            if file_size < 1000:
                # Small files are closed whenever they are full.
                closed = log._files.view.closed
                model.active_from = closed[-1].meta.last + 1 if closed else model.active_from
            assert log.next_offset == model.next_offset
        assert survivors(log, 3) == model.records
        assert survivors(log, 100) == model.records
        first = model.records[0][0] if model.records else model.next_offset
        assert log.min_offset == first
        assert log.verify() == []
        log.close()


def _apply(log: QueueLog, model: Model, clock: TestClock, name: str, argument: object) -> QueueLog:
    if name == "append":
        assert isinstance(argument, list)
        offset, records = model.next_offset - 1, []
        for gap, key, value in argument:
            offset += 1 + gap
            records.append((offset, key, value))
        log.append(records_of(records))
        model.append(records)
    elif name == "roll":
        log.roll()
        model.roll()
    elif name == "compact":
        assert argument is None or isinstance(argument, int)
        log.compact(force=True, map_capacity=argument)
        model.compact(clock.age)
    elif name == "wait":
        assert isinstance(argument, int)
        clock.age += argument
    elif name == "truncate":
        assert isinstance(argument, int)
        offset = max(model.next_offset - argument, 0)
        log.truncate(offset)
        model.truncate(offset)
    else:
        if argument:
            log.close()
        log = open_log(log.folder, log._settings, clock=clock)
    return log


def test_b5_writer_roller_compactor_and_readers_at_once(tmp_path: Path) -> None:
    """T16: offsets rise for every reader, and in the end the log is the model."""
    log = open_log(tmp_path / "q", settings(file_size=4000))
    stop = threading.Event()
    failures: list[BaseException] = []
    rounds = 80

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)
            finally:
                if work is write:
                    stop.set()

        return threading.Thread(target=run)

    def write() -> None:
        for number in range(rounds):
            append(log, *((f"k{(number * 7 + i) % 50}", f"{number}.{i}") for i in range(8)))
            if number % 5 == 0:
                log.roll()
            if number % 11 == 0:
                log.sync()

    def compact() -> None:
        capacity = 1
        while not stop.is_set():
            capacity = capacity % 60 + 7
            log.compact(force=True, map_capacity=capacity)

    def read() -> None:
        while not stop.is_set():
            offset = before = 0
            while (found := log.read(offset, 13, 1 << 20)).status is ReadStatus.FOUND:
                records = decode(found.slices)
                assert [one[0] for one in records] == sorted({one[0] for one in records})
                assert records[0][0] >= max(offset, before)
                before, offset = records[-1][0] + 1, found.next_offset
                assert offset == before
            assert log.next_offset >= offset

    threads = [guarded(work) for work in (write, compact, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    assert log.next_offset == rounds * 8
    log.roll()
    log.compact(force=True)
    expected = {}
    for number in range(rounds):
        for i in range(8):
            expected[f"k{(number * 7 + i) % 50}"] = f"{number}.{i}"
    assert {key: value for _, key, value in survivors(log, 100)} == expected
    log.close()


def test_open_files_ask_the_idlest_to_rest() -> None:
    rested: list[int] = []

    class One:
        def __init__(self, number: int) -> None:
            self.number = number

        def rest(self) -> None:
            rested.append(self.number)

    files = OpenFiles(2)
    owners = [One(number) for number in range(4)]
    for owner in (owners[0], owners[1], owners[0], owners[2]):
        files.use(owner)
    assert rested == [1]
    files.drop(owners[0])
    files.use(owners[3])
    assert rested == [1]
    assert len(files) == 2


@pytest.mark.soak
def test_t16_for_ten_minutes(tmp_path: Path) -> None:
    for number in range(600):
        test_b5_writer_roller_compactor_and_readers_at_once(tmp_path / str(number))
