"""Blocks as rows of a Spark data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.runtime.blocks import Block, BlockKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["ROW_SCHEMA", "blocks_of", "rows_of"]

#: What Spark is told of the rows; it looks only at ``partition``.
ROW_SCHEMA = (
    "partition int, stage int, kind int, operator string, port int, payload binary, attempt long"
)

_ARROW_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("stage", pa.int32()),
        ("kind", pa.int32()),
        ("operator", pa.string()),
        ("port", pa.int32()),
        ("payload", pa.binary()),
        ("attempt", pa.int64()),
    ]
)


def rows_of(blocks: Iterable[Block]) -> pa.RecordBatch:
    """Put blocks into a record batch, one row each."""
    chosen = list(blocks)
    columns: list[list[object]] = [
        [block.partition for block in chosen],
        [block.stage for block in chosen],
        [int(block.kind) for block in chosen],
        [block.operator for block in chosen],
        [block.port for block in chosen],
        [block.payload for block in chosen],
        [block.attempt for block in chosen],
    ]
    arrays = [
        pa.array(column, field.type) for column, field in zip(columns, _ARROW_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW_SCHEMA)


def blocks_of(batch: pa.RecordBatch) -> Iterator[Block]:
    """Read the blocks of a record batch."""
    columns = (batch.column(name).to_pylist() for name in _ARROW_SCHEMA.names)
    for partition, stage, kind, *rest in zip(*columns, strict=True):
        yield Block(partition, stage, BlockKind(kind), *rest)
