"""Rows out of whole files, from any row on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from headrace.errors import DeserializationError

__all__ = ["FORMATS", "Reading", "Rows", "format_of", "is_appendable", "read_rows"]

Rows: TypeAlias = "list[Any] | pa.Array"
"""Values, as Arrow columns where the format has columns."""

_ENDINGS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
#: Endings of compressed files, which are read as what they hold.
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read."""

    #: Most rows at once.
    rows: int = 10_000
    delimiter: str = ","
    #: Whether the first line of a CSV file names the columns.
    header: bool = True
    #: Names of the columns of a CSV file; empty: those of its header, or f0, f1 ...
    columns: tuple[str, ...] = ()
    #: Whether all columns of CSV files are text.
    text: bool = False


def format_of(path: Path, chosen: str) -> str:
    """Tell the format of a file by its ending, unless one was chosen.

    >>> format_of(Path("a/b.ndjson"), "auto"), format_of(Path("b.csv.gz"), "auto")
    ('jsonl', 'csv')
    """
    if chosen != "auto":
        return chosen
    found = _ENDINGS.get(_ending(path))
    if found is None:
        message = f"The ending of {path} says nothing of its format."
        hint = f"Set format, or files to a pattern; endings that say it: {', '.join(_ENDINGS)}."
        raise DeserializationError(message, hint=hint)
    return found


def is_appendable(path: Path, kind: str) -> bool:
    """Whether a file of a format may grow at its end.

    >>> is_appendable(Path("a.csv"), "csv"), is_appendable(Path("a.csv.gz"), "csv")
    (True, False)
    """
    return kind in {"csv", "jsonl"} and path.suffix.lower() not in _COMPRESSED


def _ending(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return plain.suffix.lower()


def read_rows(path: Path, kind: str, first: int, how: Reading) -> Iterator[Rows]:
    """Give the rows of a file from one on, in pieces.

    Raises
    ------
    DeserializationError
        Where the file is not what its format says.
    """
    row = first
    with _naming(path, lambda: row):
        for rows in FORMATS[kind](path, first, how):
            yield rows
            row += len(rows)


@contextmanager
def _naming(path: Path, row: Callable[[], int]) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, orjson.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        message = f"{path} cannot be read behind row {row()}: {error}"
        hint = "Correct or remove the file; bad.files=skip passes over such files."
        raise DeserializationError(message, hint=hint) from error


def _parquet(path: Path, first: int, how: Reading) -> Iterator[Rows]:
    with pq.ParquetFile(path) as file:
        groups = list(range(file.num_row_groups))
        while groups and first >= (rows := file.metadata.row_group(groups[0]).num_rows):
            first -= rows
            groups.pop(0)
        if groups:
            yield from _from_row(file.iter_batches(how.rows, row_groups=groups), first, how.rows)


def _csv(path: Path, first: int, how: Reading) -> Iterator[Rows]:
    if path.stat().st_size == 0:
        return
    delimiter = "\t" if _ending(path) == ".tsv" and how.delimiter == "," else how.delimiter
    reading = pa_csv.ReadOptions(block_size=_BLOCK)
    if how.columns:
        reading.column_names = how.columns
        reading.skip_rows = int(how.header)
    else:
        reading.autogenerate_column_names = not how.header
    parsing = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with pa_csv.open_csv(
        pa.input_stream(path, compression="detect"),
        reading,
        parsing,
        pa_csv.ConvertOptions(
            column_types=_texts(path, reading, parsing, all_of_them=how.text),
            strings_can_be_null=not how.text,
        ),
    ) as file:
        yield from _from_row(file, first, how.rows)


def _texts(
    path: Path,
    reading: pa_csv.ReadOptions,
    parsing: pa_csv.ParseOptions,
    *,
    all_of_them: bool,
) -> dict[str, pa.DataType]:
    """Give the columns that are text; one that begins with nothing but nulls has to be something."""
    with pa_csv.open_csv(pa.input_stream(path, compression="detect"), reading, parsing) as file:
        return {
            field.name: pa.string()
            for field in file.schema
            if all_of_them or pa.types.is_null(field.type)
        }


def _jsonl(path: Path, first: int, how: Reading) -> Iterator[Rows]:
    with BufferedReader(pa.input_stream(path, compression="detect")) as file:
        lines = islice((line for line in file if line.strip()), first, None)
        while piece := [orjson.loads(line) for line in islice(lines, how.rows)]:
            yield piece


def _whole(path: Path, first: int, how: Reading) -> Iterator[Rows]:
    del how
    if first == 0:
        yield [path.read_bytes()]


def _from_row(batches: Iterator[pa.RecordBatch], first: int, most: int) -> Iterator[Rows]:
    for batch in batches:
        if first >= len(batch):
            first -= len(batch)
            continue
        for start in range(first, len(batch), most):
            yield batch.slice(start, most).to_struct_array()
        first = 0


FORMATS: dict[str, Callable[[Path, int, Reading], Iterator[Rows]]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
    "whole": _whole,
}
"""How each format is read."""
