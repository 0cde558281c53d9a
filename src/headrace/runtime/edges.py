"""Edges that cross a shuffle: records, or what was combined of them, to the partition of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.keys import encode_keys, partitions_of
from headrace.runtime.aggregates import Combiner, combines
from headrace.runtime.blocks import BlockKind, Rows
from headrace.runtime.chunk import Chunk
from headrace.runtime.writing import writing
from headrace.topology.operators import Aggregate, Operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runtime.user_code import Locator

__all__ = ["Edge", "make_edge"]


class Edge(Protocol):
    """The way from one operator to another over a shuffle."""

    def add(self, chunk: Chunk) -> None:
        """Take records of the operator that sends."""

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        """Give everything taken so far, by kind and partition."""


class _RecordEdge:
    """Sends every record."""

    def __init__(self, target: Operator, port: int) -> None:
        self._target = target
        self._serde = target.input_serde(port)
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        chunk = Chunk.merge(self._chunks)
        self._chunks = []
        if not len(chunk):
            return
        with writing(self._target, f"what it shuffles (serde {self._serde!r})"):
            keys = encode_keys(chunk.key_list())
            values = self._serde.serialize_many(chunk.values)
        rows = Rows(
            pa.array(keys, pa.binary()),
            values,
            chunk.times,
            chunk.marks,
            chunk.headers,
            chunk.late_below,
            chunk.retracts,
        )
        for partition, part in rows.split(partitions_of(keys, partitions)):
            yield BlockKind.RECORDS, partition, part


class _CombinedEdge:
    """Sends one partial accumulator per key and task."""

    def __init__(self, target: Aggregate, locator: Locator) -> None:
        self._combiner = Combiner(target, locator)

    def add(self, chunk: Chunk) -> None:
        self._combiner.add(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        rows = self._combiner.flush()
        if rows is None:
            return
        for partition, part in rows.split(partitions_of(rows.keys.to_pylist(), partitions)):
            yield BlockKind.PARTIALS, partition, part


def make_edge(target: Operator, port: int, locator: Locator) -> Edge:
    """Make the edge to an operator from its parent number ``port``."""
    if isinstance(target, Aggregate) and combines(target):
        return _CombinedEdge(target, locator)
    return _RecordEdge(target, port)
