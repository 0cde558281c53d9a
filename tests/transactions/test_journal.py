"""Spouts that cannot replay: their tuples go to a topic first."""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import TopologyError, TopologyTestDriver, serdes
from headrace.private import users_folder
from headrace.topology import BatchGroupId, TaskContext
from headrace.transactions import (
    FieldsDeclarer,
    JournalSpout,
    SpoutCollector,
    TopicSink,
    TransactionTopologyBuilder,
)
from tests.transactions.components import Collected, Pass


class Clicks:
    """Emits each number once, whatever happens."""

    def __init__(self, *streams: str) -> None:
        self.streams = streams or ("default",)
        self.number = 0

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        for stream in self.streams:
            declarer.declare_stream(stream, "number", "parity")

    def prepare(self, context: TaskContext) -> None:
        del context

    def next_tuple(self, collector: SpoutCollector) -> None:
        collector.emit([self.number, self.number % 2])
        self.number += 1

    def cleanup(self) -> None:
        self.number = -1


def test_two_groups_come_of_it_with_a_topic_between_them() -> None:
    builder = TransactionTopologyBuilder("site", {"tuple.num.per.batch": 2})
    builder.set_spout("clicks", JournalSpout(Clicks()), 2)
    builder.set_bolt("pass", Pass("number", "parity"), 2).fields_grouping("clicks", "parity")
    builder.set_sink("out", TopicSink("out", serdes.json)).shuffle_grouping("pass")
    built = builder.build()
    assert built.journal_topics == ("site-clicks-spoutTopic",)
    reads, writes = built.groups
    assert (reads.name, writes.name) == ("site", "site-clicks-source")
    with TopologyTestDriver(writes, partitions=2) as driver:
        driver.run_batches(2)
        journal = driver.output("site-clicks-spoutTopic", serdes.state).read_all()
    emitted = sorted(record.value["number"] for record in journal)
    assert emitted == [0, 0, 1, 1, 2, 2, 3, 3]
    with TopologyTestDriver(reads, partitions=2) as driver:
        driver.input("site-clicks-spoutTopic", serdes.state).pipe([r.value for r in journal])
        found = [record.value for record in driver.output("out", serdes.json).read_all()]
    assert sorted(row["number"] for row in found) == emitted
    assert all(row["parity"] == row["number"] % 2 for row in found)


def emitted(spout: JournalSpout, calls: int = 1) -> list[int]:
    found: Any = Collected()
    for _ in range(calls):
        spout.next_tuple(found)
    return [values[0] for _, _, values in found.emitted]


_tasks: list[JournalSpout] = []


def task(spout: JournalSpout, state: int | None = None) -> JournalSpout:
    """Begin with a copy of a spout, as each process does."""
    own = copy.deepcopy(spout)
    own.prepare(TaskContext("site", "clicks-source", 0, 1, 1, {}))
    own.init_state(state)
    _tasks.append(own)
    return own


def batch(spout: JournalSpout, number: int, calls: int = 2) -> list[int]:
    found = emitted(spout, calls)
    spout.finish_batch()
    assert spout.commit(BatchGroupId(number), None) == number
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    while _tasks:
        _tasks.pop().cleanup()


class TestRollBack:
    def test_what_was_not_committed_is_emitted_again(self) -> None:
        spout = task(JournalSpout(Clicks()))
        assert batch(spout, 1) == [0, 1]
        spout.ack_commit(BatchGroupId(1))
        assert batch(spout, 2) == [2, 3]
        spout.roll_back(1)
        assert batch(spout, 2) == [2, 3, 4]
        spout.roll_back(1)
        spout.ack_commit(BatchGroupId(1))
        assert batch(spout, 2, calls=1) == [2, 3, 4]
        spout.ack_commit(BatchGroupId(2))
        assert batch(spout, 3) == [5, 6]

    def test_what_turns_out_to_be_committed_is_not(self) -> None:
        spout = task(JournalSpout(Clicks()))
        assert batch(spout, 1) == [0, 1]
        spout.roll_back(1)
        assert batch(spout, 2) == [2, 3]

    def test_an_older_commit_forgets_nothing(self) -> None:
        spout = task(JournalSpout(Clicks()), 4)
        assert batch(spout, 5) == [0, 1]
        spout.ack_commit(BatchGroupId(4))
        assert emitted(spout) == [0, 1]

    def test_a_task_that_moves_to_another_process_emits_it_again_there(self) -> None:
        spout = JournalSpout(Clicks())
        here = task(spout)
        assert batch(here, 1) == [0, 1]
        there = task(spout)
        assert batch(there, 1, calls=1) == [0, 1]
        here.roll_back(1)
        assert emitted(here) == [2]

    def test_what_a_process_emitted_before_it_died_is_emitted_by_the_next_one(self) -> None:
        spout = JournalSpout(Clicks())
        first = task(spout)
        assert batch(first, 1) == [0, 1]
        first.ack_commit(BatchGroupId(1))
        assert emitted(first, 3) == [2, 3, 4]
        assert emitted(task(spout, 1)) == [2, 3, 4]

    def test_an_entry_that_a_dying_process_left_unfinished_is_none(self, folder: Path) -> None:
        spout = JournalSpout(Clicks())
        emitted(task(spout), 2)
        (file,) = users_folder("spouts").glob("*/*")
        file.write_bytes(file.read_bytes() + pickle.dumps([7, 1])[:-3])
        second = task(spout)
        assert emitted(second, 1) == [0, 1]
        assert emitted(second, 1) == [0]
        assert emitted(task(spout), 1) == [0, 1, 0]

    def test_another_driver_does_not_take_it(self) -> None:
        assert emitted(task(JournalSpout(Clicks())), 2) == [0, 1]
        assert emitted(task(JournalSpout(Clicks()))) == [0]


def test_what_a_driver_left_behind_is_removed_after_a_day(folder: Path) -> None:
    for age in (2, 30):
        old = users_folder("spouts") / f"{age}"
        old.mkdir()
        (old / "clicks-0").touch()
        for path in (old / "clicks-0", old):
            os.utime(path, (time.time() - age * 3600, time.time() - age * 3600))
    emitted(task(JournalSpout(Clicks())))
    assert (users_folder("spouts") / "2").exists()
    assert not (users_folder("spouts") / "30").exists()


@pytest.mark.parametrize("streams", [("other",), ("default", "other")])
def test_other_streams_are_refused(streams: tuple[str, ...]) -> None:
    builder = TransactionTopologyBuilder("site")
    with pytest.raises(TopologyError, match=rf"declares the streams {', '.join(streams)}"):
        builder.set_spout("clicks", JournalSpout(Clicks(*streams)))


def test_what_is_no_spout_is_refused() -> None:
    builder = TransactionTopologyBuilder("site")
    with pytest.raises(TopologyError, match="is a Pass, which has no next_tuple"):
        builder.set_spout("clicks", JournalSpout(Pass()))  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="is the class Clicks"):
        builder.set_spout("clicks", JournalSpout(Clicks))  # type: ignore[arg-type]
