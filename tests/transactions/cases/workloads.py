"""The workloads of the cases: what is sent, the topology that takes it, and what must come of it.

``set``: every id goes through two bolts to a topic.  ``bank``: transfers between accounts, whose
debits and credits are kept by two bolts.  ``seq``: numbers per key, each one above the one before.
``example``: sentences from a spout that replays, and a word count; nothing is sent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace import serdes
from headrace.topology import (
    BatchGroupId,
    BoltCollector,
    SpoutCollector,
    TaskContext,
    Tuple,
)
from headrace.transactions import (
    Bolt,
    FieldsDeclarer,
    Spout,
    StatefulBolt,
    TopicSink,
    TopicSpout,
    TransactionTopologyBuilder,
)
from tests.transactions.cases.hooks import has_flaw, here, traced

__all__ = ["ACCOUNTS", "BATCH", "SENTENCES", "WORKLOADS", "Workload"]

BATCH = 40
"""Messages in a batch, over all queues."""

ACCOUNTS = 100
KEYS = 10
SENTENCES = ("to be or not to be", "that is the question", "to die to sleep", "no more")

Row = Mapping[str, Any]
State = Mapping[str, Sequence[Any]]
"""States of the tasks of each stateful component, None for those that have none."""


@dataclass(frozen=True)
class Workload:
    """One workload."""

    name: str
    #: Topics that it reads and writes, without the suffix of the run; "" for none.
    source: str
    sink: str
    #: Makes the topology, from its configuration and the suffix of its name and topics.
    build: Callable[[Mapping[str, Any], str], TransactionTopologyBuilder]
    #: Makes the messages, by their numbers.
    message: Callable[[int], Row]
    #: Tells what is wrong with the states of all tasks, after the messages that were read.
    wrong_state: Callable[[Sequence[Row], State], Iterable[str]]


@traced
class Split(Bolt):
    """Passes ids on."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("id", "noise")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple) -> None:
        here("split.execute", taken["row"]["id"])
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


def wrong_counts(rows: Sequence[Row], states: State) -> Iterable[str]:
    counted = sum(state or 0 for state in states["count"])
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


@traced
class Sentences(Spout):
    """Gives fixed sentences in turn; its state is how many it gave."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("sentence")

    def init_state(self, state: Any) -> None:
        self.given = state or 0

    def next_tuple(self, collector: SpoutCollector) -> None:
        here("spout.next", self.given)
        collector.emit([SENTENCES[self.given % len(SENTENCES)]])
        self.given += 1
        if self.given % BATCH == 0:
            collector.emit_barrier()

    def finish_batch(self) -> Any:
        return self.given

    def commit(self, batch_group_id: BatchGroupId, state: Any) -> Any:
        return here("spout.commit.0", batch_group_id.batch_id, state)


@traced
class SplitSentence(Bolt):
    """Gives the words of each sentence."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple) -> None:
        for word in taken["sentence"].split():
            self.collector.emit([word])


@traced
class WordCount(StatefulBolt):
    """Counts words."""

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.task = context.task

    def init_state(self, state: Any) -> None:
        self.counts = Counter(state or {})

    def roll_back(self, state: Any) -> None:
        if state is not None or not has_flaw("forgetful"):
            self.init_state(state)

    def execute(self, taken: Tuple) -> None:
        self.counts[taken["word"]] += 1

    def finish_batch(self) -> Any:
        return dict(self.counts)

    def commit(self, batch_group_id: BatchGroupId, state: Any) -> Any:
        return here(f"count.commit.{self.task}", batch_group_id.batch_id, state)


def sentences(config: Mapping[str, Any], suffix: str) -> TransactionTopologyBuilder:
    """The word count of the design document."""
    topology = TransactionTopologyBuilder(f"example{suffix}", config=config)
    topology.set_spout("spout", Sentences(), parallelism=1)
    topology.set_bolt("split", SplitSentence(), parallelism=2).local_or_shuffle_grouping("spout")
    topology.set_bolt("count", WordCount(), parallelism=2).fields_grouping("split", "word")
    return topology


def wrong_words(rows: Sequence[Row], states: State) -> Iterable[str]:
    """Hold the counts against the spout's own state: every count follows from it."""
    del rows
    given = sum(state or 0 for state in states["spout"])
    wanted: Counter[str] = Counter()
    for number in range(given):
        wanted.update(SENTENCES[number % len(SENTENCES)].split())
    found: Counter[str] = Counter()
    for state in states["count"]:
        found.update(state or {})
    if found != wanted:
        yield f"after {given} sentences the counts are {dict(found)} instead of {dict(wanted)}"


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("set", "ids", "set-out", ids, lambda number: {"id": number}, wrong_counts),
        Workload("bank", "transfers", "bank-out", bank, transfer, wrong_books),
        Workload(
            "seq",
            "numbers",
            "seq-out",
            numbered,
            lambda number: {"id": number, "key": number % KEYS, "number": number // KEYS + 1},
            wrong_numbers,
        ),
        Workload("example", "", "", sentences, lambda _: {}, wrong_words),
    )
}
