"""Whole files out of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from io import BufferedReader
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, BinaryIO, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from headrace.connect import Config, ConfigProblem, at_least, between, declare, key, one_of
from headrace.connect.columns import json_texts
from headrace.connect.connectors.texts import as_json, lines_of
from headrace.errors import DeserializationError, SerializationError

# Rows out of whole files, from any row on, wherever the files are.

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
#: Endings of compressed files, which are read as what they hold, and what compressed them.
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Readable:
    r"""A file that can be read, on a disk or elsewhere.

    Examples
    --------
    >>> lines = Readable("a.jsonl", lambda: pa.BufferReader(b"1\n2\n"))
    >>> list(read_rows(lines, "jsonl", 1, Reading()))
    [[2]]
    """

    #: Its path, which messages show and whose ending says what it is.
    name: str
    #: Opens it, each time at its begin.
    open: Callable[[], pa.NativeFile]
    #: Tells a failure of what holds the file from one of the file itself: gives what to raise.
    outage: Callable[[OSError], Exception | None] = lambda _: None


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


def format_of(name: str, chosen: str) -> str:
    """Return the format of a file by its ending, unless one was chosen.

    >>> format_of("a/b.ndjson", "auto"), format_of("b.csv.gz", "auto")
    ('jsonl', 'csv')
    """
    if chosen != "auto":
        return chosen
    found = _ENDINGS.get(_ending(name))
    if found is None:
        message = f"The ending of {name} says nothing of its format."
        hint = f"Set format, or a pattern that leaves it out; endings that say it: {', '.join(_ENDINGS)}."
        raise DeserializationError(message, hint=hint)
    return found


def is_appendable(name: str, kind: str) -> bool:
    """Whether a file of a format may grow at its end.

    >>> is_appendable("a.csv", "csv"), is_appendable("a.csv.gz", "csv")
    (True, False)
    """
    return kind in {"csv", "jsonl"} and _compression(name) is None


def _ending(name: str) -> str:
    path = PurePosixPath(name)
    return (path.with_suffix("") if _compression(name) else path).suffix.lower()


def _compression(name: str) -> str | None:
    return _COMPRESSED.get(PurePosixPath(name).suffix.lower())


def read_rows(file: Readable, kind: str, first: int, how: Reading) -> Iterator[Rows]:
    """Yield the rows of a file from one on, in pieces.

    Raises
    ------
    DeserializationError
        Where the file is not what its format says.
    """
    row = first
    with _naming(file, lambda: row):
        for rows in FORMATS[kind](file, first, how):
            yield rows
            row += len(rows)


_UNREADABLE = (
    *(pa.ArrowException, msgspec.DecodeError, UnicodeDecodeError),
    # JSON that is nested too deeply.
    *(RecursionError, OSError),
)


@contextmanager
def _naming(file: Readable, row: Callable[[], int]) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        if isinstance(error, FileNotFoundError):
            raise
        if isinstance(error, OSError) and (outage := file.outage(error)) is not None:
            raise outage from error
        message = f"{file.name} cannot be read behind row {row()}: {error}"
        hint = "Correct or remove the file; bad.files=skip passes over such files."
        raise DeserializationError(message, hint=hint) from error


@contextmanager
def _stream(file: Readable) -> Iterator[pa.NativeFile]:
    with file.open() as raw, pa.input_stream(raw, compression=_compression(file.name)) as stream:
        yield stream


def _is_empty(file: Readable) -> bool:
    with file.open() as raw:
        return bool(raw.size() == 0)


def _parquet_of_reading(file: Readable, first: int, how: Reading) -> Iterator[Rows]:
    with file.open() as raw, pq.ParquetFile(raw) as table:
        groups = list(range(table.num_row_groups))
        while groups and first >= (rows := table.metadata.row_group(groups[0]).num_rows):
            first -= rows
            groups.pop(0)
        if groups:
            yield from _from_row(table.iter_batches(how.rows, row_groups=groups), first, how.rows)


def _csv_of_reading(file: Readable, first: int, how: Reading) -> Iterator[Rows]:
    if _is_empty(file):
        return
    delimiter = "\t" if _ending(file.name) == ".tsv" and how.delimiter == "," else how.delimiter
    reading = pa_csv.ReadOptions(block_size=_BLOCK)
    if how.columns:
        reading.column_names = how.columns
        reading.skip_rows = int(how.header)
    else:
        reading.autogenerate_column_names = not how.header
    parsing = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    converting = pa_csv.ConvertOptions(
        column_types=_texts(file, reading, parsing, all_of_them=how.text),
        strings_can_be_null=not how.text,
    )
    with _stream(file) as stream, pa_csv.open_csv(stream, reading, parsing, converting) as rows:
        yield from _from_row(rows, first, how.rows)


def _texts(
    file: Readable,
    reading: pa_csv.ReadOptions,
    parsing: pa_csv.ParseOptions,
    *,
    all_of_them: bool,
) -> dict[str, pa.DataType]:
    """Return the columns that are text.

    One that begins with nothing but nulls has to be something.
    """
    with _stream(file) as stream, pa_csv.open_csv(stream, reading, parsing) as rows:
        return {
            field.name: pa.string()
            for field in rows.schema
            if all_of_them or pa.types.is_null(field.type)
        }


def _jsonl_of_reading(file: Readable, first: int, how: Reading) -> Iterator[Rows]:
    with _stream(file) as stream, BufferedReader(stream, _BLOCK) as text:
        lines = islice((line for line in text if line.strip()), first, None)
        while piece := [msgspec.json.decode(line) for line in islice(lines, how.rows)]:
            yield piece


def _whole(file: Readable, first: int, how: Reading) -> Iterator[Rows]:
    del how
    if first == 0:
        with file.open() as raw:
            yield [raw.read()]


def _from_row(batches: Iterator[pa.RecordBatch], first: int, most: int) -> Iterator[Rows]:
    for batch in batches:
        if first >= len(batch):
            first -= len(batch)
            continue
        for start in range(first, len(batch), most):
            yield batch.slice(start, most).to_struct_array()
        first = 0


FORMATS: dict[str, Callable[[Readable, int, Reading], Iterator[Rows]]] = {
    "csv": _csv_of_reading,
    "jsonl": _jsonl_of_reading,
    "parquet": _parquet_of_reading,
    "whole": _whole,
}
"""How each format is read."""


# Config keys of every source that reads whole files.

READING_KEYS = declare(
    key(
        "format",
        str,
        "What the files are; auto goes by their endings; whole makes a record of each file.",
        default="auto",
        valid=one_of("auto", *FORMATS),
    ),
    key(
        "when.done",
        str,
        "What happens to a file once all its rows are committed.",
        default="keep",
        valid=one_of("keep", "move", "delete"),
    ),
    key(
        "forget.after.ms",
        timedelta,
        "How long a file must be gone until it is forgotten that it was read: one that comes back "
        "later is read anew.  What the task itself moves or deletes is forgotten at once.",
        default=timedelta(days=1),
        importance="low",
    ),
    key(
        "ledger.after.files",
        int,
        "How many files that were read and stay are remembered in the commit record; what is more "
        "is written into a ledger beside the files.",
        default=10_000,
        valid=at_least(1),
        importance="low",
    ),
    key(
        "bad.files",
        str,
        "What to do with a file that is not what its format says: fail the task, or log it "
        "and skip the rest of it.",
        default="fail",
        valid=one_of("fail", "skip"),
    ),
    key("csv.delimiter", str, r"What parts the fields of a CSV file, such as \t.", default=","),
    key("csv.header", bool, "Whether CSV files begin with a line of names.", default=True),
    key("csv.columns", list, "Names of the columns, instead of the header's.", default=[]),
    key(
        "csv.types",
        str,
        "Whether columns of CSV files get types by their first megabyte, or stay text.",
        default="infer",
        valid=one_of("infer", "text"),
    ),
    key(
        "batch.max.rows",
        int,
        "Most rows of a poll.",
        default=10_000,
        valid=between(1, 1_000_000),
        importance="low",
    ),
    key(
        "scan.interval.ms",
        timedelta,
        "How often to look for new files; by default each second in a folder, and every ten in a "
        "bucket.",
        importance="low",
    ),
)


def reading_of(config: Config) -> Reading:
    r"""Return how files are read.

    >>> reading_of(READING_KEYS.parse({"csv.delimiter": r"\t"})).delimiter
    '\t'
    """
    return Reading(
        rows=config["batch.max.rows"],
        delimiter=_delimiter(config),
        header=config["csv.header"],
        columns=tuple(config["csv.columns"]),
        text=config["csv.types"] == "text",
    )


def delimiter_problems(config: Config) -> Iterable[ConfigProblem]:
    """Name what is wrong with the delimiter."""
    if len(_delimiter(config)) != 1:
        yield ConfigProblem("csv.delimiter", "The key csv.delimiter must be one character.")


def _delimiter(config: Config) -> str:
    text: str = config["csv.delimiter"]
    return text.encode().decode("unicode_escape")


# Which files were read before, and how far.

_UNFINISHED = (".tmp", ".part", ".partial", ".inprogress", ".crc", ".swp")


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A file that is ready."""

    #: Its path below the folder, or its key.
    name: str
    size: int
    #: When it was written last, in nanoseconds since 1970.
    modified: int


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far a file has been read."""

    row: int
    size: int | None = None
    modified: int | None = None
    done: bool = False

    @classmethod
    def of(cls, offset: Mapping[str, Any] | None) -> FileProgress:
        """Read it out of a committed offset."""
        if offset is None:
            return cls(0)
        row = int(offset.get("row", 0))
        return cls(row, offset.get("size"), offset.get("modified"), bool(offset.get("done")))

    def offset(self) -> dict[str, Any]:
        """Write it as an offset that is committed."""
        return {
            "row": self.row,
            "size": self.size,
            "modified": self.modified,
            "done": self.done,
        }

    def places(self, rows: int) -> list[dict[str, Any]]:
        """Write an offset for each of the last rows."""
        last = self.offset()
        first = self.row - rows + 1
        return [{**last, "row": row, "done": False} for row in range(first, self.row)] + [last]

    def is_of(self, found: ReadyFile) -> bool:
        """Whether the file is as it was; a position set by hand fits every file."""
        return self.size is None or (self.size, self.modified) == (found.size, found.modified)

    def goes_on(self, found: ReadyFile, *, appendable: bool) -> int | None:
        """Return the row at which to go on in a file; ``None`` when all of it has been read.

        A file of lines that grew was appended to.  Any other change makes it a new file.
        """
        if self.is_of(found):
            return None if self.done else self.row
        grew = self.size is not None and found.size > self.size
        return self.row if grew and appendable else 0


def is_unfinished(name: str) -> bool:
    """Whether a name says that its file is not finished, or not meant for others.

    >>> [is_unfinished(name) for name in ("a/b.csv", "a/.b.csv", "_a/b.csv", "b.csv.tmp")]
    [False, True, True, True]
    """
    return name.endswith(_UNFINISHED) or any(part[0] in "._" for part in PurePosixPath(name).parts)


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
