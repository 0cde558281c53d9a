"""Spouts that cannot replay: their tuples go to a topic first."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import TopologyError, TopologyTestDriver, serdes
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
        journal = driver.output("site-clicks-spoutTopic", serdes.pickle).read_all()
    emitted = sorted(record.value["number"] for record in journal)
    assert emitted == [0, 0, 1, 1, 2, 2, 3, 3]
    with TopologyTestDriver(reads, partitions=2) as driver:
        driver.input("site-clicks-spoutTopic", serdes.pickle).pipe([r.value for r in journal])
        found = [record.value for record in driver.output("out", serdes.json).read_all()]
    assert sorted(row["number"] for row in found) == emitted
    assert all(row["parity"] == row["number"] % 2 for row in found)


def emitted(spout: JournalSpout, calls: int = 1) -> list[int]:
    found: Any = Collected()
    for _ in range(calls):
        spout.next_tuple(found)
    return [values[0] for _, _, values in found.emitted]


class TestRollBack:
    def batch(self, spout: JournalSpout, number: int, calls: int = 2) -> list[int]:
        found = emitted(spout, calls)
        spout.finish_batch()
        spout.commit(BatchGroupId(number), None)
        return found

    def test_what_was_not_committed_is_emitted_again(self) -> None:
        spout = JournalSpout(Clicks())
        assert self.batch(spout, 1) == [0, 1]
        spout.ack_commit(BatchGroupId(1))
        assert self.batch(spout, 2) == [2, 3]
        spout.roll_back(None)
        assert self.batch(spout, 2) == [2, 3, 4]
        spout.roll_back(None)
        assert self.batch(spout, 2, calls=1) == [2, 3, 4]
        spout.ack_commit(BatchGroupId(2))
        assert self.batch(spout, 3) == [5, 6]

    def test_what_turns_out_to_be_committed_is_not(self) -> None:
        spout = JournalSpout(Clicks())
        assert self.batch(spout, 1) == [0, 1]
        spout.roll_back(None)
        spout.ack_commit(BatchGroupId(1))
        assert self.batch(spout, 2) == [2, 3]

    def test_an_older_commit_forgets_nothing(self) -> None:
        spout = JournalSpout(Clicks())
        assert self.batch(spout, 5) == [0, 1]
        spout.roll_back(None)
        spout.ack_commit(BatchGroupId(4))
        assert emitted(spout) == [0, 1]


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
