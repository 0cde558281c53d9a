"""A word count of spouts and bolts in one process: what the engine costs beside the user's code.

No Spark, no broker: the tasks of a batch run one after the other in the test driver.  Times are
those of the processor, so they hold for one core, whatever else the machine does.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.lines import random_lines
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import WORDS_PER_LINE
from headrace import TopologyTestDriver
from headrace.transactions import (
    Bolt,
    BoltCollector,
    FieldsDeclarer,
    KeyValueBolt,
    Spout,
    SpoutCollector,
    StatefulBolt,
    TaskContext,
    TransactionTopologyBuilder,
    Tuple,
)

__all__ = ["bolts_engine", "bolts_key_value"]

#: Different lines; more would only be slower to make.
_POOL = 1 << 14
_TUPLES_PER_LINE = 1 + WORDS_PER_LINE
_COUNTERS = 2


class _Lines(Spout):
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("line")

    def init_state(self, state: int | None) -> None:
        self.index = state or 0

    def next_tuple(self, collector: SpoutCollector) -> None:
        collector.emit((self.lines[self.index % len(self.lines)],))
        self.index += 1

    def finish_batch(self) -> int:
        return self.index


class _Split(Bolt):
    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word")

    def prepare(self, context: TaskContext | None, collector: BoltCollector) -> None:
        del context
        self.collector = collector

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        emit = self.collector.emit
        for word in tuple["line"].split():
            emit((word,))


class _Count(StatefulBolt):
    def init_state(self, state: Mapping[str, int] | None) -> None:
        self.counts = Counter(state or {})

    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        self.counts[tuple["word"]] += 1

    def finish_batch(self) -> dict[str, int]:
        return dict(self.counts)


class _KeyedCount(KeyValueBolt):
    def execute(self, tuple: Tuple) -> None:  # noqa: A002 - the name of the interface
        word, state = tuple["word"], self.state
        state[word] = state.get(word, 0) + 1


@benchmark({"bolts_engine": "tuples/s"})
def bolts_engine(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count words with a state per task; the time of the user's code is left out."""
    lines, count = _lines(plan), plan.sizes.batch_lines
    for _ in range(plan.runs):
        with _few_collections():
            whole = _batch_seconds(lines, _Count(), count)
            own = _seconds(lambda: _users_code(lines, count))
        yield {"bolts_engine": count * _TUPLES_PER_LINE / (whole - own)}


@benchmark({"bolts_key_value": "tuples/s"})
def bolts_key_value(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count words with a value per key, the user's code included."""
    lines, count = _lines(plan), plan.sizes.batch_lines
    for _ in range(plan.runs):
        with _few_collections():
            whole = _batch_seconds(lines, _KeyedCount(), count)
        yield {"bolts_key_value": count * _TUPLES_PER_LINE / whole}


def _lines(plan: Plan) -> list[str]:
    made = next(random_lines(_POOL, plan.sizes.few_words))
    return [line.decode() for line in made.to_pylist()]


def _batch_seconds(lines: list[str], counter: Bolt, count: int) -> float:
    """Run a batch that warms up, and time the next one."""
    config = {"tuple.num.per.batch": count, "transaction.schedule.batch.delay.ms": 3_600_000}
    builder = TransactionTopologyBuilder("words", config)
    builder.set_spout("lines", _Lines(lines))
    builder.set_bolt("split", _Split()).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", counter, parallelism=_COUNTERS).fields_grouping("split", "word")
    (group,) = builder.build().groups
    with TopologyTestDriver(group) as driver:
        driver.run_batches(1)
        return _seconds(driver.run_batches)


def _users_code(lines: list[str], count: int) -> None:
    """Make the calls that a batch makes of the user's objects."""

    class Nowhere:
        def emit(self, values: Any) -> None:
            """Take a tuple."""

    nowhere: Any = Nowhere()
    spout, split, counter = _Lines(lines), _Split(), _Count()
    spout.init_state(0)
    split.prepare(None, nowhere)
    counter.init_state(None)
    for _ in range(count):
        spout.next_tuple(nowhere)
    taken: Any
    for number in range(count):
        taken = {"line": lines[number % len(lines)]}
        split.execute(taken)
    for number in range(count):
        for word in lines[number % len(lines)].split():
            taken = {"word": word}
            counter.execute(taken)
    counter.finish_batch()


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@contextmanager
def _few_collections() -> Iterator[None]:
    """Look for garbage as rarely as a job's workers do."""
    before = gc.get_threshold()
    gc.set_threshold(500_000, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)
