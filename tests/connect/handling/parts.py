"""What tests of handling build on: rows, a chain whose pauses are written down, a sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.handling import SinkChain, SourceChain, sink_chain, source_chain
from headrace.connect.plugins import SinkTask
from headrace.connect.records import SinkBatch, SinkRecord, SourceRecord
from headrace.errors import RetriableError


@dataclass
class Pauses:
    """Waits by writing down; tells to stop after so many pauses."""

    most: int = 1_000_000
    taken: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> bool:
        self.taken.append(seconds)
        return len(self.taken) >= self.most


def source(pauses: Pauses | None = None, /, **texts: str) -> SourceChain:
    """Make a source's chain; ``_`` in a name stands for a point."""
    return source_chain("lines", 1, dotted(texts), wait=pauses or Pauses())


def sink(pauses: Pauses | None = None, /, **texts: str) -> SinkChain:
    """Make a sink's chain."""
    return sink_chain("store", 2, dotted(texts), wait=pauses or Pauses())


def dotted(texts: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): text for name, text in texts.items()}


def rows(*values: bytes | None, **columns: Any) -> pa.RecordBatch:
    """Make rows of one queue, from offset 100 on."""
    made = [
        {
            "topic": "orders",
            "broker": "broker-a",
            "queue": 3,
            "offset": 100 + at,
            "key": f"k{at}".encode(),
            "value": value,
            "properties": [("user", "Ann")],
            "timestamp": 1_700_000_000_000 + at,
            **columns,
        }
        for at, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(made, schema=SINK_SCHEMA)


def record(value: Any = "hello", **changes: Any) -> SourceRecord:
    """Make a record of a source."""
    fields = {"partition": {"file": "a"}, "offset": {"n": 1}, "topic": "lines", "value": value}
    return SourceRecord(**(fields | changes))


class Store(SinkTask):
    """Keeps what it is given, but for the values that it refuses."""

    def __init__(self, *refused: object, retriable: int = 0) -> None:
        self.calls: list[list[Any]] = []
        self.kept: list[Any] = []
        self._refused = refused
        self._retriable = retriable

    def put(self, records: Sequence[SinkRecord]) -> None:
        self.calls.append([one.value for one in records])
        self._take([one.value for one in records])

    def _take(self, values: list[Any]) -> None:
        if self._retriable:
            self._retriable -= 1
            raise RetriableError("the store is away")
        for value in values:
            if value in self._refused:
                raise ValueError(f"no {value!r} here")
        self.kept += values


class ColumnStore(Store):
    """The same with columns."""

    def put_batch(self, batch: SinkBatch) -> None:
        self.calls.append(batch.value.to_pylist())
        self._take(batch.value.to_pylist())


def failing(error: Exception, times: int = 1) -> Callable[[SourceRecord], SourceRecord]:
    """Make a function that fails so many times, then gives its record back."""
    left = [times]

    def function(one: SourceRecord) -> SourceRecord:
        if left[0]:
            left[0] -= 1
            raise error
        return one

    return function
