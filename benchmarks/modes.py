"""One topology of spouts and bolts under each guarantee, and with an acker's traffic beside it.

The acker is what Storm's at least once does, in its cheapest form: for every tuple that is executed
one control row goes through a shuffle to a task that keeps a checksum per line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from benchmarks.clusters import embedded
from benchmarks.lines import send_lines
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE, Sizes
from benchmarks.unguarded import unguarded
from benchmarks.word_count import commits, counted_words, job_settings
from headrace import Topology, serdes
from headrace.client import Admin, Client
from headrace.settings import Guarantee, JobSettings
from headrace.spark import StreamJob
from headrace.transactions import (
    Bolt,
    BoltCollector,
    FieldsDeclarer,
    StatefulBolt,
    TaskContext,
    TopicSink,
    TopicSpout,
    TransactionTopologyBuilder,
    Tuple,
)

__all__ = ["modes"]

_MODES = ("at_most_once", "at_least_once", "exactly_once", "acker")


@benchmark({f"mode_{mode}": "words/s" for mode in _MODES})
def modes(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count ten million words out of 1,000 in every mode, in turn."""
    sizes = plan.sizes
    with embedded() as (address, folder), Client(address) as client:
        send_lines(client, "lines", sizes.words // WORDS_PER_LINE, sizes.few_words)
        settings = job_settings(address, folder, sizes)
        for run in range(plan.runs):
            yield {f"mode_{mode}": _rate(client, settings, sizes, mode, run) for mode in _MODES}


def _rate(client: Client, settings: JobSettings, sizes: Sizes, mode: str, run: int) -> float:
    """Words per second from the commit that ends the warm-up to the last one."""
    target = f"{mode}-{run}"
    Admin(client).create_topic(target, queues=QUEUES)
    guarantee: Guarantee = "exactly_once" if mode == "exactly_once" else "at_least_once"
    topology = word_count(f"words-{target}", "lines", target, acked=mode == "acker")
    with (
        unguarded() if mode in ("at_most_once", "acker") else nullcontext(),
        StreamJob(topology, replace(settings, guarantee=guarantee)).start() as job,
    ):
        job.await_caught_up(sizes.patience)
    counted = counted_words(client, target)
    assert counted == sizes.words, f"{counted} of {sizes.words} words were counted {mode}"
    records = commits(client, topology)
    first, last = records[sizes.warm_up_batches - 1], records[-1]
    lines = last.counters["records_in"] - first.counters["records_in"]
    return lines * WORDS_PER_LINE / ((last.timestamp - first.timestamp) / 1000)


def word_count(name: str, lines: str, counts: str, *, acked: bool) -> Topology:
    """Count the words of a topic; with an acker, every tuple is told of."""
    builder = TransactionTopologyBuilder(name)
    builder.set_spout("lines", TopicSpout(lines, serdes.string, fields=["line"]))
    split = builder.set_bolt("split", Split(acked=acked), parallelism=2)
    split.local_or_shuffle_grouping("lines")
    count = builder.set_bolt("count", Count(acked=acked), parallelism=2)
    count.fields_grouping("split", "word")
    if acked:
        acker = builder.set_bolt("acker", Acker(), parallelism=2)
        acker.fields_grouping("split", "root", stream="ack")
        acker.fields_grouping("count", "root", stream="ack")
    sink = TopicSink(counts, serdes.json, key_field="word")
    builder.set_sink("out", sink).shuffle_grouping("count")
    (group,) = builder.build().groups
    return group


class _Acked:
    """Tells of tuples on a stream of control rows, where there is an acker."""

    def __init__(self, *, acked: bool) -> None:
        self.acked = acked

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        """Take the collector."""
        del context
        self.collector = collector


class Split(_Acked, Bolt):
    """Gives the words of each line, with the number of the line that an acker goes by."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the fields."""
        declarer.declare("word", "root")
        if self.acked:
            declarer.declare_stream("ack", "root", "checksum")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        """Take the collector, and numbers that no other task gives."""
        super().prepare(context, collector)
        self.root = context.task << 32

    def execute(self, taken: Tuple) -> None:
        """Split a line."""
        self.root += 1
        root, emit = self.root, self.collector.emit
        for word in taken["line"].split():
            emit((word, root))
        if self.acked:
            emit((root, root), stream="ack")


class Count(_Acked, StatefulBolt):
    """Counts words, and gives what changed at the end of each batch."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the fields."""
        declarer.declare("word", "count")
        if self.acked:
            declarer.declare_stream("ack", "root", "checksum")

    def init_state(self, state: Mapping[str, int] | None) -> None:
        """Begin with the counts of the last commit."""
        self.counts: Counter[str] = Counter(state or {})
        self.changed: set[str] = set()

    def execute(self, taken: Tuple) -> None:
        """Count a word."""
        word, root = taken.values
        self.counts[word] += 1
        self.changed.add(word)
        if self.acked:
            self.collector.emit((root, root), stream="ack")

    def finish_batch(self) -> Any:
        """Give the counts that changed."""
        for word in self.changed:
            self.collector.emit((word, self.counts[word]))
        self.changed.clear()
        return dict(self.counts)


class Acker(Bolt):
    """Keeps a checksum per line, and drops it when all of its tuples are told of."""

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        """Begin with no lines."""
        del context, collector
        self.open: dict[int, int] = {}

    def execute(self, taken: Tuple) -> None:
        """Take note of a tuple."""
        root, checksum = taken.values
        found = self.open.pop(root, 0) ^ checksum
        if found:
            self.open[root] = found
