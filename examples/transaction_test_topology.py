"""Counts the words of sentences that a spout repeats for ever: spout, split, count.

``python -m examples.transaction_test_topology`` runs some batches in this process and checks what
is committed; with ``--on spark`` the same topology runs on Spark, on a broker that is gone
afterwards.  ``--fail`` lets the first batch fail once, before anything has succeeded.
``headrace run examples/transaction_test_topology.py`` runs it until Ctrl-C.

The check needs no log: the state of the spout says how many sentences it has emitted, and from
that number alone follows how often every word was counted.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace import JobSettings, TopologyTestDriver
from headrace.embedded import embedded_broker
from headrace.transactions import (
    Bolt,
    FieldsDeclarer,
    Spout,
    StatefulBolt,
    TransactionTopology,
    TransactionTopologyBuilder,
    Tuple,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.transactions import BoltCollector, SpoutCollector, TaskContext

SENTENCES = (
    "the mill stands by the river",
    "the river turns the wheel",
    "a wheel turns a stone",
    "the stone grinds the corn by night and by day",
)


class SentenceSpout(Spout):
    """Emits the sentences one after the other, round and round; its state is how many so far."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the field."""
        declarer.declare("sentence")

    def init_state(self, state: int | None) -> None:
        """Go on behind what was committed; without that, begin with the first sentence."""
        self.emitted = state or 0

    def next_tuple(self, collector: SpoutCollector) -> None:
        """Emit a sentence."""
        collector.emit([SENTENCES[self.emitted % len(SENTENCES)]])
        self.emitted += 1

    def finish_batch(self) -> int:
        """Give the state to commit."""
        return self.emitted


class Split(Bolt):
    """Emits the words of each sentence."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        """Name the field."""
        declarer.declare("word")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        """Keep the collector."""
        del context
        self.collector = collector

    def execute(self, taken: Tuple, /) -> None:
        """Take a sentence."""
        for word in taken["sentence"].split():
            self.collector.emit([word], anchor=taken)


class WordCount(StatefulBolt):
    """Counts words; the state of a task is the counts of the words that it takes.

    Parameters
    ----------
    fuse
        A file: where it exists, one batch removes it and fails.
    """

    def __init__(self, fuse: Path | None = None) -> None:
        self.fuse = fuse

    def init_state(self, state: Mapping[str, int] | None) -> None:
        """Go on from what was committed; without that, from nothing."""
        self.counts = Counter(state or {})

    def execute(self, taken: Tuple, /) -> None:
        """Take a word."""
        self.counts[taken["word"]] += 1
        if self.fuse is not None and self.fuse.exists():
            self.fuse.unlink(missing_ok=True)
            message = "the fuse has burnt"
            raise RuntimeError(message)

    def finish_batch(self) -> dict[str, int]:
        """Give the state to commit: a copy, as counting goes on."""
        return dict(self.counts)


def build(name: str = "sentences", fuse: Path | None = None) -> TransactionTopology:
    """Make the topology."""
    builder = TransactionTopologyBuilder(name, {"tuple.num.per.batch": 1_000})
    builder.set_spout("spout", SentenceSpout(), parallelism=1)
    builder.set_bolt("split", Split(), parallelism=2).local_or_shuffle_grouping("spout")
    builder.set_bolt("count", WordCount(fuse), parallelism=2).fields_grouping("split", "word")
    return builder.build()


topology = build()


def expected(emitted: int) -> Counter[str]:
    """Say how often each word is in the first so many sentences."""
    rounds, rest = divmod(emitted, len(SENTENCES))
    counts: Counter[str] = Counter()
    for place, sentence in enumerate(SENTENCES):
        for word in sentence.split():
            counts[word] += rounds + (place < rest)
    return +counts


def check(emitted: int, states: Iterable[Mapping[str, int]]) -> str:
    """Compare what one commit holds with what follows from the spout's state.

    Raises
    ------
    AssertionError
        A word was lost, counted twice, or counted in two tasks.
    """
    total: Counter[str] = Counter()
    for state in states:
        both = total.keys() & state.keys()
        assert not both, f"counted in two tasks: {sorted(both)}"
        total.update(state)
    assert total == expected(emitted), f"{emitted} sentences, but {dict(total)}"
    return f"{emitted} sentences, {total.total()} words: every count is right"


def run_here(fuse: Path | None) -> str:
    """Run five batches in this process."""
    (group,) = build(fuse=fuse).groups
    with TopologyTestDriver(group) as driver:
        if fuse is not None:
            try:
                driver.run_batches()
            except Exception as error:  # noqa: BLE001 - shown, and what it did is checked below
                print(str(error).splitlines()[0])
        driver.run_batches(5)
        return check(driver.state("spout").all()[0], driver.state("count").all().values())


def run_on_spark(fuse: Path | None, folder: Path, namesrv: str | None, master: str) -> str:
    """Run on Spark until three batches are committed, then look at the last commit."""
    from headrace import TransactionJob

    with contextlib.ExitStack() as opened:
        address = namesrv or opened.enter_context(embedded_broker(folder))
        settings = JobSettings(namesrv=address, data_dir=folder, partitions=2, master=master)
        with TransactionJob(build(fuse=fuse), settings).start() as job:
            while job.statistics().batch < 3:
                job.await_termination(timeout=timedelta(milliseconds=100))
            print(f"{job.statistics().restarts} roll-backs")
        return committed(address)


def committed(address: str) -> str:
    """Check the last commit of the topology, which does not run now."""
    from headrace.client import Client
    from headrace.runtime.state.home import StateHome
    from headrace.runtime.state.views import CommittedState

    (group,) = topology.groups
    with Client(address) as client:
        home = StateHome.of(group.name, client)
        with (
            CommittedState(home, "spout", group.operator("spout")) as spout,
            CommittedState(home, "count", group.operator("count")) as count,
        ):
            return check(spout.all()[0], [entry.value for entry in count.scan()])


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description="Counts words of sentences, exactly once.")
    parser.add_argument("--on", choices=["driver", "spark"], default="driver")
    parser.add_argument("--fail", action="store_true", help="Let batch 1 fail once.")
    parser.add_argument("--namesrv", help="On Spark: a broker that stays; default: one of its own.")
    parser.add_argument("--master", default="local[2,4]", help="On Spark: where it runs.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-example-") as name:
        fuse = Path(name, "fuse") if options.fail else None
        if fuse is not None:
            fuse.touch()
        if options.on == "spark":
            print(run_on_spark(fuse, Path(name), options.namesrv, options.master))
        else:
            print(run_here(fuse))


if __name__ == "__main__":
    main()
