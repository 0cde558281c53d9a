"""A simulated job of spouts and bolts: counts by key, and a spout that counts for itself."""

from __future__ import annotations

from headrace import Topology, serdes
from headrace.topology import BoltCollector, SpoutCollector, TaskContext, Tuple
from headrace.transactions import (
    Bolt,
    FieldsDeclarer,
    KeyValueBolt,
    Spout,
    StatefulBolt,
    TopicSink,
    TopicSpout,
    TransactionTopologyBuilder,
)

TICK = "tick"
TICKS = 12
"""What the spout of its own emits: so many, and no more."""


class Emitting:
    """A bolt that declares some fields and keeps its collector."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare(*self.fields)

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        del context
        self.collector = collector


class Key(Emitting, Bolt):
    """Gives the key of a line."""

    def execute(self, taken: Tuple, /) -> None:
        if taken["line"][0] != "x":
            self.collector.emit([taken["line"][0]])


class Count(Emitting, KeyValueBolt):
    """Tells how often each key has come, in state by key."""

    def execute(self, taken: Tuple, /) -> None:
        key = taken["key"]
        self.state[key] = self.state.get(key, 0) + 1
        self.collector.emit([f"{key} {self.state[key]}"])


class Ticks(Spout):
    """Emits the next number, as its state says; two in a batch."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("number")

    def init_state(self, state: int | None) -> None:
        self.number = state or 0

    def next_tuple(self, collector: SpoutCollector) -> None:
        if self.number < TICKS:
            collector.emit([self.number])
            self.number += 1
        if self.number % 2 == 0:
            collector.emit_barrier()

    def finish_batch(self) -> int:
        return self.number


class Tally(Emitting, StatefulBolt):
    """Tells what number a tick has and how many came before it, in state of its own."""

    def init_state(self, state: int | None) -> None:
        self.seen = state or 0

    def execute(self, taken: Tuple, /) -> None:
        if taken.source_component == "ticks":
            self.collector.emit([f"{TICK} {taken['number']} {self.seen}"])
            self.seen += 1

    def finish_batch(self) -> int:
        return self.seen


def bolts(job: str, lines: str, results: str) -> Topology:
    """Make the topology."""
    builder = TransactionTopologyBuilder(job)
    builder.set_spout("lines", TopicSpout(lines, serdes.string, fields=["line"]))
    builder.set_spout("ticks", Ticks())
    builder.set_bolt("key", Key("key"), 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", Count("text"), 2).fields_grouping("key", "key")
    builder.set_bolt("tally", Tally("text")).global_grouping("ticks").global_grouping("lines")
    for bolt in ("count", "tally"):
        sink = TopicSink(results, serdes.string)
        builder.set_sink(f"write-{bolt}", sink).shuffle_grouping(bolt)
    (group,) = builder.build().groups
    return group
