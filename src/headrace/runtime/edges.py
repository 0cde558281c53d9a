"""Edges that cross a shuffle: records, or what was combined of them, to the partition of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.errors import SerializationError
from headrace.keys import encode_keys, partitions_of
from headrace.runtime.blocks import BlockKind, Rows
from headrace.runtime.chunk import Chunk, Int64s
from headrace.runtime.user_code.errors import salvaged
from headrace.runtime.user_code.writing import writing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runtime.user_code.calls import Locator
    from headrace.topology.operators.core import Operator

__all__ = ["CombinedEdge", "Combiner", "Edge", "Packed", "RecordEdge"]


class Packed(Protocol):
    """What an edge sends to one partition."""

    def pack(self, sender: int) -> bytes:
        """Encode it, behind the number of the partition that sends it."""


class Edge(Protocol):
    """The way from one operator to another over a shuffle."""

    def add(self, chunk: Chunk) -> None:
        """Take records of the operator that sends."""

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Packed]]:
        """Give everything taken so far, by kind and partition."""


class Combiner(Protocol):
    """Makes partial results of records before they are shuffled."""

    def add(self, chunk: Chunk) -> None:
        """Fold records in."""

    def flush(self) -> Rows | None:
        """Give what was combined."""


class RecordEdge:
    """Sends every record."""

    def __init__(self, target: Operator, port: int, locator: Locator) -> None:
        self._target = target
        self._locator = locator
        self._serde = target.input_serde(port)
        self._chunks: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        """Take records of the operator that sends."""
        self._chunks.append(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        """Give everything taken so far, by kind and partition."""
        chunk = Chunk.merge(self._chunks)
        self._chunks = []
        if not len(chunk):
            return
        try:
            keys, values = self._encoded(chunk)
        except SerializationError:
            if self._target.on_error == "fail":
                raise
            chunk = salvaged(self._target, chunk, self._encoded, self._locator)
            keys, values = self._encoded(chunk)
        rows = Rows(
            pa.array(keys, pa.binary()),
            values,
            chunk.times,
            chunk.marks,
            chunk.headers,
            chunk.late_below,
            chunk.retracts,
        )
        for partition, part in rows.split(self.targets(keys, chunk.marks, partitions)):
            yield BlockKind.RECORDS, partition, part

    def targets(self, keys: list[bytes], marks: Int64s, partitions: int) -> Int64s:
        """Choose the partition of each record."""
        del marks
        return partitions_of(keys, partitions)

    def _encoded(self, chunk: Chunk) -> tuple[list[bytes], pa.BinaryArray]:
        with writing(self._target, f"what it shuffles (serde {self._serde!r})"):
            return encode_keys(chunk.key_list()), self._serde.serialize_many(chunk.values)


class CombinedEdge:
    """Sends what a combiner makes of the records: one partial result per key and task."""

    def __init__(self, combiner: Combiner) -> None:
        self._combiner = combiner

    def add(self, chunk: Chunk) -> None:
        """Take records of the operator that sends."""
        self._combiner.add(chunk)

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        """Give everything taken so far, by kind and partition."""
        rows = self._combiner.flush()
        if rows is None:
            return
        for partition, part in rows.split(partitions_of(rows.keys.to_pylist(), partitions)):
            yield BlockKind.PARTIALS, partition, part
