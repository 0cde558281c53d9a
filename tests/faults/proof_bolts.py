"""The job that proves exactly once, of spouts and bolts: as :mod:`proof_pipeline`, and a tally.

* **Tally**: one stateful bolt takes every tuple of every spout; so all of them are one group.
  A spout of its own, whose state is the number of its next tuple, ticks into it: after every
  commit the tally has counted what the offsets and that state say.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

from headrace import serdes
from headrace.topology import SpoutCollector, TaskContext, Topology, Tuple
from headrace.transactions import (
    Bolt,
    FieldsDeclarer,
    KeyValueBolt,
    Spout,
    StatefulBolt,
    TopicSink,
    TopicSpout,
    TransactionTopology,
    TransactionTopologyBuilder,
)
from tests.faults.proof_pipeline import CREDITS, DEBITS, Names
from tests.simulation.bolts import Emitting

TALLY, TICKS = "tally", "ticks"
IDS, SEQUENCES, TRANSFERS = "read-ids", "read-sequences", "read-transfers"
#: Ticks of each task of their spout in each batch.
_TICKS = 5
_CONFIG = {"transaction.schedule.batch.delay.ms": 200}


class Split(Emitting, Bolt):
    """Cuts a text into the values of its fields."""

    def execute(self, taken: Tuple, /) -> None:
        self.collector.emit(taken["text"].replace(":", " ").split())


class CountIds(Emitting, KeyValueBolt):
    """Counts how often each id comes."""

    def execute(self, taken: Tuple, /) -> None:
        each = taken["id"]
        self.state[each] = self.state.get(each, 0) + 1
        self.collector.emit([each, self.state[each]])


class Follow(Emitting, StatefulBolt):
    """Keeps the last number of each key and tells the step to it."""

    def init_state(self, state: Mapping[str, int] | None) -> None:
        self.last = dict(state or {})

    def execute(self, taken: Tuple, /) -> None:
        key, number = taken["key"], int(taken["number"])
        self.collector.emit([key, f"{number}:{number - self.last.get(key, 0)}"])
        self.last[key] = number

    def finish_batch(self) -> dict[str, int]:
        return dict(self.last)


class Move(Emitting, KeyValueBolt):
    """Adds up what each account moved."""

    def execute(self, taken: Tuple, /) -> None:
        account = taken[self.fields[0]]
        self.state[account] = self.state.get(account, 0) + int(taken["amount"])
        self.collector.emit([account, self.state[account]])


class Ticks(Spout):
    """Emits its task and its next number; its state is that number."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("task", "number")

    def prepare(self, context: TaskContext) -> None:
        self.task = context.task

    def init_state(self, state: int | None) -> None:
        self.number = state or 0

    def next_tuple(self, collector: SpoutCollector) -> None:
        collector.emit([self.task, self.number])
        self.number += 1
        if self.number % _TICKS == 0:
            collector.emit_barrier()

    def finish_batch(self) -> int:
        return self.number


class Tally(StatefulBolt):
    """Counts the tuples of each spout; a tick that does not follow the one before stays in it."""

    def init_state(self, state: Mapping[str, int] | None) -> None:
        self.counts = Counter(state or {})

    def execute(self, taken: Tuple, /) -> None:
        self.counts[taken.source_component] += 1
        if taken.source_component == TICKS:
            name = tick_of(taken["task"])
            if taken["number"] != self.counts[name]:
                self.counts["wrong"] += 1
            self.counts[name] += 1

    def finish_batch(self) -> dict[str, int]:
        return dict(self.counts)


def tick_of(task: int) -> str:
    """Name what the tally has counted of a task's ticks."""
    return f"{TICKS}-{task}"


def proof_of_bolts(names: Names) -> TransactionTopology:
    """Make the topology of a job with these names."""
    builder = TransactionTopologyBuilder(names.job, _CONFIG)
    builder.set_spout(TICKS, Ticks(), parallelism=2)
    builder.set_spout(IDS, TopicSpout(names.ids, serdes.string, fields=["id"]))
    builder.set_spout(SEQUENCES, TopicSpout(names.sequences, serdes.string, fields=["text"]))
    builder.set_spout(TRANSFERS, TopicSpout(names.transfers, serdes.string, fields=["text"]))
    tally = builder.set_bolt(TALLY, Tally())
    for spout in (TICKS, IDS, SEQUENCES, TRANSFERS):
        tally.global_grouping(spout)
    count = builder.set_bolt("ids", CountIds("id", "count"), parallelism=4)
    count.fields_grouping(IDS, "id")
    _write(builder, names.counted, "ids", "id")
    split = builder.set_bolt("numbers", Split("key", "number"), parallelism=2)
    split.local_or_shuffle_grouping(SEQUENCES)
    follow = builder.set_bolt("sequences", Follow("key", "step"), parallelism=2)
    follow.fields_grouping("numbers", "key")
    _write(builder, names.followed, "sequences", "key")
    move = builder.set_bolt("moves", Split("giver", "taker", "amount"), parallelism=2)
    move.local_or_shuffle_grouping(TRANSFERS)
    for field, operator in (("giver", DEBITS), ("taker", CREDITS)):
        bolt = builder.set_bolt(operator, Move(field, "total"), parallelism=4)
        bolt.fields_grouping("moves", field)
        _write(builder, names.moved[operator], operator, field)
    return builder.build()


def _write(builder: TransactionTopologyBuilder, topic: str, bolt: str, key: str) -> None:
    sink = TopicSink(topic, serdes.json, key_field=key)
    builder.set_sink(f"write-{bolt}", sink).shuffle_grouping(bolt)


def group_of_bolts(names: Names) -> Topology:
    """Give the one group of the topology."""
    (group,) = proof_of_bolts(names).groups
    return group


topology = proof_of_bolts(Names(os.environ.get("PROOF_JOB", "proof")))
