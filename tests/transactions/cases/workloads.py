"""The workloads of the cases: what is sent, the topology that takes it, and what must come of it.

``set``: every id goes through two bolts to a topic.  ``bank``: transfers between accounts, whose
debits and credits are kept by two bolts.  ``seq``: numbers per key, each one above the one before.
``example``: sentences from a spout that replays, and a word count; nothing is sent.  ``disjoint``,
``stateless`` and ``stateful``: as ``set``, with two kinds of sources.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace import serdes
from headrace.topology import (
    BatchGroupId,
    BoltCollector,
    TaskContext,
    Tuple,
)
from headrace.transactions import (
    Bolt,
    FieldsDeclarer,
    StatefulBolt,
    TopicSink,
    TopicSpout,
    TransactionTopologyBuilder,
)
from tests.transactions.cases.broken import break_build
from tests.transactions.cases.hooks import BROKEN, has_flaw, here, traced
from tests.transactions.cases.sentences import sentences, wrong_words
from tests.transactions.cases.workload import Row, State, Workload

__all__ = ["ACCOUNTS", "TWO_KINDS", "WORKLOADS"]

ACCOUNTS = 100
KEYS = 10


@traced
class Split(Bolt):
    """Passes ids on."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("id", "noise")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.name, self.collector = context.component, collector

    def execute(self, taken: Tuple) -> None:
        here(f"{self.name}.execute", taken["row"]["id"])
        noise = random.random() if has_flaw("noise") else 0
        self.collector.emit([taken["row"]["id"], noise])


@traced
class Count(StatefulBolt):
    """Counts the ids that it sees, and gives each with the count."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("row")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector, self.task = collector, context.task

    def init_state(self, state: Any) -> None:
        self.seen = state or 0

    def execute(self, taken: Tuple) -> None:
        here("count.execute", taken["id"])
        self.seen += 1
        row = {"id": taken["id"], "count": self.seen, "noise": taken["noise"]}
        self.collector.emit([row])

    def finish_batch(self) -> Any:
        return self.seen

    def commit(self, batch_group_id: BatchGroupId, state: Any) -> Any:
        return here(f"count.commit.{self.task}", batch_group_id.batch_id, state)


def ids(config: Mapping[str, Any], suffix: str) -> TransactionTopologyBuilder:
    """Every id to the topic of results."""
    topology = TransactionTopologyBuilder(f"set{suffix}", config=config)
    topology.set_spout("ids", TopicSpout(f"ids{suffix}", serdes.json, fields=("row",)))
    topology.set_bolt("split", Split(), parallelism=2).local_or_shuffle_grouping("ids")
    topology.set_bolt("count", Count(), parallelism=2).fields_grouping("split", "id")
    topology.set_sink("out", TopicSink(f"set-out{suffix}", serdes.json)).shuffle_grouping("count")
    return topology


@traced
class Pass(Bolt):
    """Passes rows on."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("row")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple) -> None:
        self.collector.emit([taken["row"]])


def two_kinds(shared: str, suffix: str, config: Mapping[str, Any]) -> TransactionTopologyBuilder:
    """Ids of two sources to one topic; what they share on the way is a bolt, with state or not."""
    topology = TransactionTopologyBuilder(f"two{suffix}", config=config)
    counts = {"a": "count-a", "b": "count-b"} if shared != "state" else dict.fromkeys("ab", "count")
    bolts = {
        name: topology.set_bolt(name, Count(), parallelism=2)
        for name in dict.fromkeys(counts.values())
    }
    for kind, count in counts.items():
        spout = TopicSpout(f"ids-{kind}{suffix}", serdes.json, fields=("row",))
        topology.set_spout(kind, spout)
        split = topology.set_bolt(f"split-{kind}", Split(), parallelism=2)
        split.local_or_shuffle_grouping(kind)
        bolts[count].fields_grouping(f"split-{kind}", "id")
    ends = sorted(bolts)
    if shared == "bolt":
        common = topology.set_bolt("pass", Pass(), parallelism=2)
        for end in ends:
            common.shuffle_grouping(end)
        ends = ["pass"]
    sink = topology.set_sink("out", TopicSink(f"two-out{suffix}", serdes.json))
    for end in ends:
        sink.shuffle_grouping(end)
    return topology


def wrong_counts(rows: Sequence[Row], states: State) -> Iterable[str]:
    counted = sum(state or 0 for tasks in states.values() for state in tasks)
    if counted != len(rows):
        yield f"{len(rows)} ids were read, and the states count {counted}"


@traced
class Book(StatefulBolt):
    """Keeps the balance of each account on one side of the transfers."""

    def __init__(self, side: str, sign: int) -> None:
        self.side = side
        self.sign = sign

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("row")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector, self.task = collector, context.task

    def init_state(self, state: Any) -> None:
        self.balances = Counter(state or {})

    def execute(self, taken: Tuple) -> None:
        row = taken["row"]
        here(f"{self.side}.execute", row["id"])
        self.balances[taken["account"]] += self.sign * row["amount"]
        self.collector.emit([{"id": row["id"], "side": self.side}])

    def finish_batch(self) -> Any:
        return dict(self.balances)

    def commit(self, batch_group_id: BatchGroupId, state: Any) -> Any:
        return here(f"{self.side}.commit.{self.task}", batch_group_id.batch_id, state)


@traced
class Transfers(Bolt):
    """Gives the two accounts of each transfer."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare_stream("debit", "account", "row")
        declarer.declare_stream("credit", "account", "row")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple) -> None:
        row = taken["row"]
        here("split.execute", row["id"])
        self.collector.emit([row["from"], row], stream="debit")
        self.collector.emit([row["to"], row], stream="credit")


def bank(config: Mapping[str, Any], suffix: str) -> TransactionTopologyBuilder:
    """Transfers between accounts, each of them in two books."""
    topology = TransactionTopologyBuilder(f"bank{suffix}", config=config)
    topology.set_spout("transfers", TopicSpout(f"transfers{suffix}", serdes.json, fields=("row",)))
    topology.set_bolt("split", Transfers(), parallelism=2).shuffle_grouping("transfers")
    for side, sign in (("debit", -1), ("credit", 1)):
        book = topology.set_bolt(side, Book(side, sign), parallelism=2)
        book.fields_grouping("split", "account", stream=side)
    sink = topology.set_sink("out", TopicSink(f"bank-out{suffix}", serdes.json))
    sink.shuffle_grouping("debit").shuffle_grouping("credit")
    return topology


def transfer(number: int) -> Row:
    chance = random.Random(number)
    first, second = chance.sample(range(ACCOUNTS), 2)
    return {"id": number, "from": first, "to": second, "amount": chance.randrange(1, 50)}


def wrong_books(rows: Sequence[Row], states: State) -> Iterable[str]:
    total = sum(sum(state.values()) for side in states.values() for state in side if state)
    if total:
        yield f"the books do not add up: {total} instead of 0"
    for side, name, sign in (("debit", "from", -1), ("credit", "to", 1)):
        wanted: Counter[int] = Counter()
        for row in rows:
            wanted[row[name]] += sign * row["amount"]
        found: Counter[int] = Counter()
        for state in states[side]:
            found.update(state or {})
        if dict(found) != dict(wanted):
            yield f"the {side} book differs from the transfers that were read"


@traced
class Keys(Bolt):
    """Gives the key of each row beside it."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("key", "row")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple) -> None:
        self.collector.emit([taken["row"]["key"], taken["row"]])


@traced
class Differences(StatefulBolt):
    """Tells by how much each number is above the one before it of its key."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("row")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector, self.task = collector, context.task

    def init_state(self, state: Any) -> None:
        self.last = dict(state or {})

    def execute(self, taken: Tuple) -> None:
        row = taken["row"]
        here("seq.execute", row["id"])
        before = self.last.get(taken["key"], 0)
        self.last[taken["key"]] = row["number"]
        self.collector.emit([{"id": row["id"], "difference": row["number"] - before}])

    def finish_batch(self) -> Any:
        return self.last

    def commit(self, batch_group_id: BatchGroupId, state: Any) -> Any:
        return here(f"seq.commit.{self.task}", batch_group_id.batch_id, state)


def numbered(config: Mapping[str, Any], suffix: str) -> TransactionTopologyBuilder:
    """Numbers per key, each held against the one before it."""
    topology = TransactionTopologyBuilder(f"seq{suffix}", config=config)
    topology.set_spout("numbers", TopicSpout(f"numbers{suffix}", serdes.json, fields=("row",)))
    topology.set_bolt("keys", Keys(), parallelism=2).local_or_shuffle_grouping("numbers")
    topology.set_bolt("seq", Differences(), parallelism=2).fields_grouping("keys", "key")
    topology.set_sink("out", TopicSink(f"seq-out{suffix}", serdes.json)).shuffle_grouping("seq")
    return topology


def wrong_numbers(rows: Sequence[Row], states: State) -> Iterable[str]:
    wanted = {row["key"]: row["number"] for row in rows}
    found = {key: last for state in states["seq"] for key, last in (state or {}).items()}
    if found != wanted:
        yield f"the last number of each key is {found}, and {wanted} were read"


#: What two kinds of sources share, by names of workloads.
_SHARED = {"disjoint": "", "stateless": "bolt", "stateful": "state"}

TWO_KINDS = {
    "disjoint graphs": "disjoint",
    "shared stateless bolt": "stateless",
    "shared stateful bolt": "stateful",
}
"""Workloads with two kinds of sources, by the variants of the case that has them."""


def _of_two_kinds(name: str, shared: str) -> Workload:
    def build(config: Mapping[str, Any], suffix: str) -> TransactionTopologyBuilder:
        return two_kinds(shared, suffix, config)

    return Workload(
        name, ["ids-a", "ids-b"], "two-out", build, lambda number: {"id": number}, wrong_counts
    )


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("set", ["ids"], "set-out", ids, lambda number: {"id": number}, wrong_counts),
        Workload("bank", ["transfers"], "bank-out", bank, transfer, wrong_books),
        Workload(
            "seq",
            ["numbers"],
            "seq-out",
            numbered,
            lambda number: {"id": number, "key": number % KEYS, "number": number // KEYS + 1},
            wrong_numbers,
        ),
        Workload("example", (), "", sentences, lambda _: {}, wrong_words),
        *(_of_two_kinds(*each) for each in _SHARED.items()),
    )
}

# Wherever the workloads are loaded: by drivers, and by the workers that run their bolts.
break_build(os.environ.get(BROKEN, ""))
