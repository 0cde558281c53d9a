"""Whole files out of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from headrace.connect.connectors.texts import as_json
from headrace.errors import SerializationError

__all__ = ["WRITERS", "column_of", "write_file"]


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


def write_file(path: Path, column: pa.Array, kind: str, compression: str) -> None:
    """Write a file so that it is whole as soon as it has its name.

    Caller: syncs the folder.
    """
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as file:
        try:
            WRITERS[kind](file, column, compression)
        except pa.ArrowException as error:
            message = f"{path.name} cannot be written as {kind}: {error}"
            hint = "CSV holds no lists and no structs: Flatten them, or write jsonl or parquet."
            raise SerializationError(message, hint=hint) from error
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


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
    file.write(b"".join([line + b"\n" for line in column.to_pylist()]))


WRITERS: dict[str, Callable[[BinaryIO, pa.Array, str], None]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
}
"""How each format is written."""
