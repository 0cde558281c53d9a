"""Whole files out of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from headrace.connect.columns import json_texts
from headrace.connect.connectors.texts import as_json, lines_of
from headrace.errors import SerializationError


def column_of(values: Sequence[Any], kind: str) -> pa.Array:
    """Turn values into the column that a format writes; for JSON lines, one of JSON.

    Raises
    ------
    SerializationError
        Where they are of types that no column holds together.
    """
    if kind == "jsonl":
        return pa.array([as_json(value) for value in values], pa.binary())
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        message = f"The values fit into no column together: {error}"
        hint = "Give them one shape with a transform such as Cast, or write format=jsonl."
        raise SerializationError(message, hint=hint) from error


def as_written(column: pa.Array, kind: str) -> pa.Array:
    """Return the column that a format writes of one; for JSON lines, one of JSON.

    >>> as_written(pa.array([{"a": 1.0}, None, {"a": None}]), "jsonl").to_pylist()
    [b'{"a":1.0}', b'null', b'{"a":null}']
    """
    if kind != "jsonl":
        return column
    return json_texts(column, as_json).fill_null("null").cast(pa.binary())


def joined(pieces: Sequence[pa.Array], kind: str) -> pa.Array:
    """Make one column of several; of those that differ in type, by their values.

    >>> joined([pa.array([1]), pa.array([2.5])], "parquet").to_pylist()
    [1.0, 2.5]
    """
    if len({piece.type for piece in pieces}) == 1:
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
    return column_of([value for piece in pieces for value in piece.to_pylist()], kind)


def write_rows(file: BinaryIO, column: pa.Array, kind: str, compression: str, name: str) -> None:
    """Write a column as a file of a format.

    Parameters
    ----------
    compression
        How Parquet is compressed.
    name
        What messages call the file.

    Raises
    ------
    SerializationError
        Where the format cannot hold the values.
    """
    try:
        WRITERS[kind](file, column, compression)
    except pa.ArrowException as error:
        message = f"{name} cannot be written as {kind}: {error}"
        hint = "CSV holds no lists and no structs: Flatten them, or write jsonl or parquet."
        raise SerializationError(message, hint=hint) from error


def _table(column: pa.Array) -> pa.Table:
    if pa.types.is_struct(column.type) and column.null_count == 0:
        return pa.Table.from_batches([pa.RecordBatch.from_struct_array(column)])
    return pa.table({"value": column})


def _parquet(file: BinaryIO, column: pa.Array, compression: str) -> None:
    pq.write_table(_table(column), file, compression=compression)


def _csv(file: BinaryIO, column: pa.Array, compression: str) -> None:
    del compression
    pa_csv.write_csv(_table(column), file)


def _jsonl(file: BinaryIO, column: pa.Array, compression: str) -> None:
    del compression
    file.writelines(lines_of(column, b"\n"))


WRITERS: dict[str, Callable[[BinaryIO, pa.Array, str], None]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
}
"""How each format is written."""
