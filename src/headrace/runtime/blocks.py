"""Blocks: how records travel between stages.

A block is a run of rows for one operator and one partition, as one binary value: Spark moves it
without looking inside, so a shuffle costs per block, not per record.

===========  =========================================================================
``stage``    the stage that takes the block; others pass it on untouched
``kind``     :class:`BlockKind`
``port``     number of the parent that the rows come from, for operators with several
``attempt``  the attempt of a task that made the block, by which the coordinator sees that all parts
             of a batch were computed from one another
``payload``  rows: the sender's partition (8 bytes), then an Arrow stream; control, summary,
             watermarks: JSON
===========  =========================================================================

Rows carry key (canonical encoding), value, event time, mark, headers, and the two columns of a
:class:`~headrace.runtime.chunk.Chunk` that tell late and retracted records.  They arrive in any
order of blocks; a block's rows are in the order of their marks.  Records of one mark come in the
order of their senders, and what was combined is merged in that order, so that what an operator sees
hangs neither on which block was quicker nor on where a batch ends.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.runtime.chunk import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.runtime.chunk import Bools, Int64s


#: Stage number of blocks that go through to the driver.
SUMMARY_STAGE = 1 << 15

#: Of blocks that are the same whichever attempt hands them on: control, and failures.
ANY_ATTEMPT = -1

#: Big-endian, so that payloads sort by it; as many bytes as Arrow aligns columns to.
_SENDER_BYTES = 8


class BlockKind(IntEnum):
    """What a block holds."""

    #: Records, each encoded by the edge's serdes.
    RECORDS = 0
    #: Partial accumulators, combined before the shuffle.
    PARTIALS = 1
    #: What a partition must know of the batch; every partition gets one in every batch.
    CONTROL = 2
    #: What a task staged and counted.
    SUMMARY = 3
    #: A failure that no retry can mend, for the driver to raise.
    FAILURE = 4
    #: Event-time watermarks of a source queue.
    WATERMARKS = 5
    #: A run of tuples between components: see :mod:`headrace.runtime.bolts.bolts`.
    TUPLES = 6


@dataclass(frozen=True, slots=True)
class Block:
    """One value of the exchange between stages."""

    partition: int
    stage: int
    kind: BlockKind
    #: Operator that takes the rows; empty for blocks that are for the whole task.
    operator: str
    port: int
    payload: bytes
    #: Number of the attempt that made it: no other one of the batch has it.
    attempt: int = ANY_ATTEMPT


_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("time", pa.int64()),
        ("mark", pa.int64()),
        ("headers", pa.binary()),
        ("late_below", pa.int64()),
        ("retracts", pa.bool_()),
    ]
)


@dataclass(slots=True)
class Rows:
    """Encoded records in columns."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    times: Int64s
    marks: Int64s
    headers: list[dict[str, str] | None] | None = None
    late_below: Int64s | None = None
    retracts: Bools | None = None

    def __len__(self) -> int:
        return len(self.marks)

    def take(self, indices: np.ndarray[Any, np.dtype[np.intp]]) -> Rows:
        """Pick rows by index."""
        picks = pa.array(indices)
        return Rows(
            self.keys.take(picks),
            self.values.take(picks),
            self.times[indices],
            self.marks[indices],
            None if self.headers is None else [self.headers[i] for i in indices.tolist()],
            None if self.late_below is None else self.late_below[indices],
            None if self.retracts is None else self.retracts[indices],
        )

    def pack(self, sender: int = 0) -> bytes:
        """Encode the rows, behind the number of the partition that sends them."""
        headers = (
            pa.nulls(len(self), pa.binary())
            if self.headers is None
            else pa.array([h and orjson.dumps(h) for h in self.headers], pa.binary())
        )
        late_below, retracts = (
            pa.nulls(len(self), kind) if column is None else pa.array(column)
            for column, kind in ((self.late_below, pa.int64()), (self.retracts, pa.bool_()))
        )
        times, marks = pa.array(self.times), pa.array(self.marks)
        batch = pa.RecordBatch.from_arrays(
            [self.keys, self.values, times, marks, headers, late_below, retracts], schema=_SCHEMA
        )
        sink = pa.BufferOutputStream()
        sink.write(sender.to_bytes(_SENDER_BYTES, "big"))
        with pa.ipc.new_stream(sink, _SCHEMA) as writer:
            writer.write_batch(batch)
        payload: bytes = sink.getvalue().to_pybytes()
        return payload

    @classmethod
    def unpack(cls, payloads: list[bytes]) -> Rows:
        """Decode blocks; their rows come end to end, in the order of the senders."""
        streams = [pa.py_buffer(payload).slice(_SENDER_BYTES) for payload in sorted(payloads)]
        batches = [batch for stream in streams for batch in pa.ipc.open_stream(stream)]
        table = pa.Table.from_batches(batches, _SCHEMA).combine_chunks()
        keys, values, times, marks, headers, late_below, retracts = (
            column.chunk(0) if column.num_chunks else pa.array([], column.type)
            for column in table.columns
        )
        return cls(
            keys,
            values,
            times.to_numpy(zero_copy_only=False),
            marks.to_numpy(zero_copy_only=False),
            None
            if headers.null_count == len(headers)
            else [h and orjson.loads(h) for h in headers.to_pylist()],
            _filled(late_below, default=NEVER),
            _filled(retracts, default=False),
        )

    def by_mark(self) -> Rows:
        """Bring the rows into the order of their marks."""
        if bool(np.all(self.marks[:-1] <= self.marks[1:])):
            return self
        return self.take(np.argsort(self.marks, kind="stable"))

    def by_key(self) -> tuple[list[bytes], Int64s, Int64s]:
        """Return the different keys in their order, which of them each row has, and the last rows.

        The last row of a key is the one with the highest mark; of several, the one that stands
        last.
        """
        encoded = self.keys.dictionary_encode()
        order = pc.array_sort_indices(encoded.dictionary)
        ranks = np.empty(len(order), np.intp)
        ranks[order.to_numpy()] = np.arange(len(order))
        groups = ranks[encoded.indices.to_numpy()]
        highest = np.full(len(order), np.iinfo(np.int64).min)
        np.maximum.at(highest, groups, self.marks)
        rows = np.flatnonzero(self.marks == highest[groups])
        last = np.zeros(len(order), np.intp)
        np.maximum.at(last, groups[rows], rows)
        return encoded.dictionary.take(order).to_pylist(), groups, last

    @classmethod
    def join(cls, parts: Iterable[Rows]) -> Rows:
        """Join runs of rows end to end."""
        full = [part for part in parts if len(part)]
        if len(full) == 1:
            return full[0]
        return cls.unpack([part.pack(place) for place, part in enumerate(full)])

    def split(self, partitions: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[int, Rows]]:
        """Group rows by partition, keeping their order within each."""
        if len(self) == 0:
            return []
        order = np.argsort(partitions, kind="stable")
        sorted_partitions = partitions[order]
        edges = np.flatnonzero(np.diff(sorted_partitions)) + 1
        starts = np.concatenate(([0], edges, [len(order)]))
        ordered = self if len(starts) == 2 else self.take(order)
        return [
            (int(sorted_partitions[a]), ordered.slice(int(a), int(b)))
            for a, b in itertools.pairwise(starts)
        ]

    def slice(self, start: int, stop: int) -> Rows:
        """Return a run of rows."""
        return Rows(
            self.keys.slice(start, stop - start),
            self.values.slice(start, stop - start),
            self.times[start:stop],
            self.marks[start:stop],
            None if self.headers is None else self.headers[start:stop],
            None if self.late_below is None else self.late_below[start:stop],
            None if self.retracts is None else self.retracts[start:stop],
        )


def _filled(column: pa.Array, *, default: int) -> np.ndarray[Any, Any] | None:
    if column.null_count == len(column):
        return None
    filled: np.ndarray[Any, Any] = column.fill_null(default).to_numpy(zero_copy_only=False)
    return filled
