"""The workload that reads nothing: sentences from a spout that replays, and a word count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.topology import BatchGroupId, BoltCollector, SpoutCollector, TaskContext, Tuple
from headrace.transactions import (
    Bolt,
    FieldsDeclarer,
    Spout,
    StatefulBolt,
    TransactionTopologyBuilder,
)
from tests.transactions.cases.hooks import has_flaw, here, traced
from tests.transactions.cases.workload import BATCH, Row, State

__all__ = ["SENTENCES", "sentences", "wrong_words"]

SENTENCES = ("to be or not to be", "that is the question", "to die to sleep", "no more")


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
