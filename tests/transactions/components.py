"""Spouts and bolts that tests put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from headrace.topology import BoltCollector, SpoutCollector, TaskContext, Tuple
from headrace.transactions import (
    Bolt,
    FieldsDeclarer,
    KeyValueBolt,
    OffsetSpout,
    Spout,
    StatefulBolt,
)


class Words(Spout):
    """Emits one word after the other, round and round."""

    def __init__(self, *words: str) -> None:
        self.words = words or ("be",)

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word")

    def init_state(self, state: int | None) -> None:
        self.index = state or 0

    def next_tuple(self, collector: SpoutCollector) -> None:
        collector.emit([self.words[self.index % len(self.words)]])
        self.index += 1

    def finish_batch(self) -> int:
        return self.index


class Numbers(OffsetSpout):
    """Has the numbers from 0 up to an end, each at the offset of its own value."""

    def __init__(self, end: int) -> None:
        self.end = end

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("number")

    def latest_offset(self, start: int | None, limit: int) -> int:
        return min((start or 0) + limit, self.end)

    def read(self, start: int | None, end: int) -> Iterable[Iterable[int]]:
        return ([number] for number in range(start or 0, end))


class Pass(Bolt):
    """Emits what it takes."""

    def __init__(self, *fields: str) -> None:
        self.fields = fields or ("word",)

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare(*self.fields)

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple, /) -> None:
        self.collector.emit(list(taken))


class End(Bolt):
    """Emits nothing."""

    def execute(self, taken: Tuple, /) -> None:
        del taken


class Sorter(Bolt):
    """Emits short words to a stream of their own, and names tasks for the long ones."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare_stream("short", "word", "length")
        declarer.declare_stream("long", "word", direct=True)

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple, /) -> None:
        word = taken["word"]
        if len(word) < 4:
            self.collector.emit([word, len(word)], stream="short")
        else:
            self.collector.emit_direct(len(word) % 2, [word], stream="long")


class Count(StatefulBolt):
    """Counts words, and emits their counts."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word", "count")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def init_state(self, state: dict[str, int] | None) -> None:
        self.counts = Counter(state or {})

    def execute(self, taken: Tuple, /) -> None:
        word = taken["word"]
        self.counts[word] += 1
        self.collector.emit([word, self.counts[word]])

    def finish_batch(self) -> dict[str, int]:
        return dict(self.counts)


class KeyCount(KeyValueBolt):
    """Counts words by key."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word", "count")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple, /) -> None:
        word = taken["word"]
        self.state[word] = self.state.get(word, 0) + 1
        self.collector.emit([word, self.state[word]])


class Basic:
    """A bolt of the basic interface: it subclasses nothing of ours."""

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word")

    def prepare(self, context: TaskContext, collector: BoltCollector) -> None:
        self.collector = collector

    def execute(self, taken: Tuple, /) -> None:
        for word in taken["word"].split():
            self.collector.emit([word])

    def cleanup(self) -> None:
        self.collector = None  # type: ignore[assignment]


class Collected:
    """A collector that keeps what it is given."""

    def __init__(self) -> None:
        self.emitted: list[tuple[str, int | None, list[Any]]] = []
        self.barriers = 0

    def emit(self, values: Any, anchor: Any = None, stream: str = "default") -> None:
        self.emitted.append((stream, None, list(values)))

    def emit_direct(
        self, task: int, values: Any, anchor: Any = None, stream: str = "default"
    ) -> None:
        self.emitted.append((stream, task, list(values)))

    def emit_barrier(self) -> None:
        self.barriers += 1

    def ack(self, taken: Tuple) -> None:
        del taken

    def fail(self, reason: Any) -> None:
        raise RuntimeError(reason)
