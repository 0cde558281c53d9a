"""A topology of two groups for the fault tests: each counts the words of a topic of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace import TransactionTopologyBuilder, serdes
from headrace.transactions import (
    Bolt,
    BoltCollector,
    FieldsDeclarer,
    StatefulBolt,
    TaskContext,
    TopicSink,
    TopicSpout,
    Tuple,
)

NAME, GROUPS = "two-groups", ("left", "right")


class Split(Bolt):
    """Gives the words of a line."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple) -> None:
        for word in taken["line"].split():
            self.collector.emit((word,))


class Count(StatefulBolt):
    """Gives the count of a word at each of its occurrences."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word", "count")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def init_state(self, state: Mapping[str, int] | None) -> None:
        self.counts: Counter[str] = Counter(state or {})

    def roll_back(self, state: Mapping[str, int] | None) -> None:
        self.init_state(state)

    def execute(self, taken: Tuple) -> None:
        word = taken["word"]
        self.counts[word] += 1
        self.collector.emit((word, self.counts[word]))

    def finish_batch(self) -> Mapping[str, int]:
        return dict(self.counts)


def lines_of(group: str) -> str:
    """Name the topic that a group reads."""
    return f"{group}-lines"


def counts_of(group: str) -> str:
    """Name the topic that a group writes."""
    return f"{group}-counts"


builder = TransactionTopologyBuilder(NAME)
for group in GROUPS:
    spout = TopicSpout(lines_of(group), serdes.string, fields=["line"])
    builder.set_spout(f"{group}-spout", spout)
    split = builder.set_bolt(f"{group}-split", Split(), parallelism=2)
    split.local_or_shuffle_grouping(f"{group}-spout")
    count = builder.set_bolt(f"{group}-count", Count(), parallelism=2)
    count.fields_grouping(f"{group}-split", "word")
    sink = TopicSink(counts_of(group), serdes.json, key_field="word")
    builder.set_sink(f"{group}-out", sink).shuffle_grouping(f"{group}-count")
topology = builder.build()
