"""``s3-sink``: rows as objects of a bucket, each of them once."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect import (
    Config,
    ConfigProblem,
    Queue,
    SchemaError,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
)
from headrace.connect.connectors.formats.writing import as_written, column_of, joined, write_rows
from headrace.connect.connectors.offsets import Progress, batch_from, set_by_hand
from headrace.connect.connectors.s3.connection import SINK_KEYS, Bucket, failure_of, sink_problems
from headrace.connect.connectors.s3.source import (
    WriteProgress,
    WriteProgressFiles,
    object_key,
    write_object,
)
from headrace.errors import ConnectorConfigError

if TYPE_CHECKING:
    from headrace.connect.records import Position


# Objects out of rows: what a batch of a queue is cut into, and how each is written.

#: What compresses lines, and how the names of compressed objects end.
_ENDINGS = {"gzip": ".gz", "zstd": ".zst"}
_KINDS = {
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv",
    "jsonl": "application/x-ndjson",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What objects are like.

    Examples
    --------
    >>> Shape("csv", "gzip").ending, Shape("parquet", "gzip").ending
    ('csv.gz', 'parquet')
    """

    format: str
    compression: str
    #: Most rows of an object.
    rows: int = 1_000_000
    #: Most bytes of an object, as its rows take up memory.
    bytes: int = 128 << 20

    @classmethod
    def of(cls, config: Config) -> Shape:
        """Read a sink's config."""
        return cls(
            config["format"],
            config["compression"],
            config["object.max.rows"],
            config["object.max.bytes"],
        )

    @property
    def kind(self) -> str:
        """What HTTP calls it."""
        return _KINDS[self.format] if self._outer is None else f"application/{self._outer}"

    @property
    def ending(self) -> str:
        """How names of objects end."""
        return self.format + ("" if self._outer is None else _ENDINGS[self._outer])

    @property
    def _outer(self) -> str | None:
        # Parquet compresses within.
        return None if self.format == "parquet" or self.compression == "none" else self.compression

    def content(self, column: pa.Array, name: str) -> pa.Buffer:
        """Make an object of rows.

        Raises
        ------
        SerializationError
            Where the format cannot hold them.
        """
        held = pa.BufferOutputStream()
        if self._outer is None:
            write_rows(cast("Any", held), column, self.format, self.compression, name)
        else:
            with pa.CompressedOutputStream(held, self._outer) as stream:
                write_rows(stream, column, self.format, "none", name)
        return held.getvalue()


@dataclass(slots=True)
class FolderRows:
    """Rows of a queue that go to one folder, in the order of their offsets.

    Examples
    --------
    >>> gathered = FolderRows()
    >>> gathered.add([7, 8, 9], pa.array(["a", "b", "c"]))
    >>> [(first, part.to_pylist()) for first, part in gathered.parts(Shape("csv", "none", rows=2))]
    [(7, ['a', 'b']), (9, ['c'])]
    """

    offsets: list[int] = field(default_factory=list)
    columns: list[pa.Array] = field(default_factory=list)

    def add(self, offsets: list[int], column: pa.Array) -> None:
        """Gather rows."""
        self.offsets += offsets
        self.columns.append(column)

    def parts(self, shape: Shape) -> Iterator[tuple[int, pa.Array]]:
        """Cut the rows into objects; give each with the offset of its first row."""
        column = joined(self.columns, shape.format)
        each = max(1, shape.bytes // max(1, column.nbytes // len(column)))
        most = min(shape.rows, each)
        for start in range(0, len(column), most):
            yield self.offsets[start], column.slice(start, most)


# The folders that rows belong to, by their fields and times.

#: What Hive, Spark and the like call the folder of rows that lack the field.
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
_EARLIEST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Folders:
    """Tells the folder of each row.

    Examples
    --------
    >>> folders = Folders(("field",), ("land",))
    >>> list(folders.of_rows({"land": ["de", None, "a/b"]}, [0, 0, 0]))
    ['land=de', 'land=__HIVE_DEFAULT_PARTITION__', 'land=a%2Fb']
    >>> list(Folders(("time",)).of_rows({}, [1_800_000_000_000]))
    ['year=2027/month=01/day=15/hour=08']
    """

    #: ``field`` and ``time``, in the order of their folders.
    by: tuple[str, ...] = ()
    #: The fields that have a folder each.
    fields: tuple[str, ...] = ()
    #: The field with the time; the record's own time without it.
    time_field: str | None = None
    time_format: str = "year=%Y/month=%m/day=%d/hour=%H"
    zone: dt.tzinfo = dt.UTC

    @classmethod
    def of(cls, config: Config) -> Folders:
        """Read a sink's config."""
        return cls(
            tuple(config["partition.by"]),
            tuple(config["partition.fields"]),
            config["partition.time.field"],
            config["partition.time.format"],
            ZoneInfo(config["partition.time.zone"]),
        )

    @property
    def needed(self) -> tuple[str, ...]:
        """The fields that decide."""
        fields = self.fields if "field" in self.by else ()
        return (*fields, self.time_field) if "time" in self.by and self.time_field else fields

    def of_rows(
        self, columns: Mapping[str, Sequence[Any]], times: Sequence[int | None]
    ) -> Iterator[str | SchemaError]:
        """Yield the folder of each row, or what is wrong with the row.

        Parameters
        ----------
        columns
            The values of the fields that are needed.
        times
            The records' times in milliseconds since 1970.
        """
        for row, time in enumerate(times):
            try:
                yield "/".join(
                    part for by in self.by for part in self._parts(by, columns, row, time)
                )
            except SchemaError as error:
                yield error

    def _parts(
        self, by: str, columns: Mapping[str, Sequence[Any]], row: int, time: int | None
    ) -> Iterator[str]:
        if by == "field":
            for field in self.fields:
                yield f"{quote(field, safe='')}={_name(columns[field][row])}"
        else:
            given = columns[self.time_field][row] if self.time_field else time
            yield self._moment(given).strftime(self.time_format)

    def _moment(self, given: Any) -> dt.datetime:
        try:
            return _read_time(given).astimezone(self.zone)
        except (ValueError, TypeError, OverflowError) as error:
            where = f"The field {self.time_field}" if self.time_field else "The record's time"
            message = f"{where} is {given!r:.80}, which is no time: {error}"
            hint = "Give milliseconds since 1970, ISO 8601 or a timestamp, or drop such records."
            raise SchemaError(message, hint=hint) from error


def _read_time(given: Any) -> dt.datetime:
    match given:
        case dt.datetime():
            return given if given.tzinfo else given.replace(tzinfo=dt.UTC)
        case dt.date():
            return dt.datetime(given.year, given.month, given.day, tzinfo=dt.UTC)
        case str():
            return _read_time(dt.datetime.fromisoformat(given))
        case int() | float() if not isinstance(given, bool):
            return _EARLIEST + dt.timedelta(milliseconds=given)
    message = f"{type(given).__name__} is no kind of time"
    raise TypeError(message)


def _name(value: Any) -> str:
    if value is None or value == "":
        return _NOTHING
    text = value.isoformat() if isinstance(value, dt.date) else str(value)
    return quote(text.lower() if isinstance(value, bool) else text, safe="")


def field_of(value: Any, name: str) -> Any:
    """Return a field of a value; dots lead into structs within, and what is missing is ``None``.

    >>> field_of({"a": {"b": 7}}, "a.b"), field_of("text", "a")
    (7, None)
    """
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def field_of_column(column: pa.Array, name: str) -> Sequence[Any]:
    """Return a field of every value of a column.

    >>> field_of_column(pa.array([{"a": {"b": 7}}, None]), "a.b")
    [7, None]
    """
    try:
        found: list[Any] = pc.struct_field(column, name.split(".")).to_pylist()
    except (pa.ArrowException, TypeError, KeyError):  # there is no such field, or no struct
        return [None] * len(column)
    return found


#: So many queues are opened or written at once.
_AT_ONCE = 8
_Folder = str


class S3SinkTask(SinkTask):
    """Gathers rows; :meth:`flush` makes objects of those of each queue, and then moves its mark."""

    def start(self, config: Config) -> None:
        """Look at the bucket."""
        self._bucket = Bucket(config)
        self._prefix: str = config["prefix"]
        self._shape = Shape.of(config)
        self._folders = Folders.of(config)
        self._store = WriteProgressFiles(self._bucket, self._prefix, self.context.generation)
        self._marks: dict[Queue, WriteProgress] = {}
        self._gathered: dict[Queue, dict[_Folder, FolderRows]] = {}
        self._progress = Progress({})

    def open(self, queues: Collection[Queue]) -> None:
        """Take queues over: objects of a batch that was not finished are removed."""
        self._gathered = {}
        self._marks = dict(zip(queues, self._each(queues, self._take_over), strict=True))
        self._progress = Progress(self.offsets())

    def _take_over(self, queue: Queue) -> WriteProgress:
        mark = self._store.read(queue)
        for key in mark.drafts:
            with suppress(FileNotFoundError):
                self._bucket.files.delete_file(self._bucket.path(key))
        return self._store.write(queue, mark.offset, self._expected(queue, mark.offset))

    def offsets(self) -> dict[Queue, int]:
        """Tell from the marks how far each queue has been written."""
        return {
            queue: mark.offset for queue, mark in self._marks.items() if mark.offset is not None
        }

    def close(self, queues: Collection[Queue]) -> None:
        """Forget rows that were not flushed: they are read again."""
        for queue in queues:
            self._gathered.pop(queue, None)

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Gather records."""
        for queue, some in groupby(self._progress.fresh(records), lambda one: one.queue):
            self._put(queue, list(some))

    def _put(self, queue: Queue, records: list[SinkRecord]) -> None:
        fields = {
            name: [field_of(one.value, name) for one in records] for name in self._folders.needed
        }
        placed = self._folders.of_rows(fields, [one.timestamp_ms for one in records])
        by_folder: dict[_Folder, list[SinkRecord]] = defaultdict(list)
        bad: list[tuple[SinkRecord, SchemaError]] = []
        for record, folder in zip(records, placed, strict=True):
            if isinstance(folder, SchemaError):
                bad.append((record, folder))
            else:
                by_folder[f"{record.topic}/{folder}".rstrip("/")].append(record)
        columns = {
            folder: column_of([one.value for one in some], self._shape.format)
            for folder, some in by_folder.items()
        }
        # Nothing above changes anything, so what was refused can come again in parts.
        for record, error in bad:
            self.context.report(record, error)
        for folder, some in by_folder.items():
            self._add(queue, folder, [one.offset for one in some], columns[folder])
        self._progress.take(records)

    def put_batch(self, batch: SinkBatch) -> None:
        """Gather columns."""
        rows = self._progress.fresh_rows(batch)
        if len(rows) == 0:
            return
        offsets = rows.offset.to_pylist()
        column = as_written(rows.value, self._shape.format)
        by_folder = self._placed(rows)
        for folder, places in by_folder.items():
            whole = len(places) == len(column)
            some = column if whole else column.take(pa.array(places, pa.int64()))
            self._add(rows.queue, folder, [offsets[place] for place in places], some)
        self._progress.take_rows(rows)

    def _placed(self, rows: SinkBatch) -> dict[_Folder, list[int]]:
        """Share rows out to folders; report those that belong to none."""
        topic = rows.queue.topic
        if not self._folders.by:
            return {topic: list(range(len(rows)))}
        fields = {name: field_of_column(rows.value, name) for name in self._folders.needed}
        times = [None] * len(rows) if rows.timestamp_ms is None else rows.timestamp_ms.to_pylist()
        by_folder: dict[_Folder, list[int]] = defaultdict(list)
        for place, folder in enumerate(self._folders.of_rows(fields, times)):
            if isinstance(folder, SchemaError):
                [record] = batch_from(rows, place, 1).records()
                self.context.report(record, folder)
            else:
                by_folder[f"{topic}/{folder}"].append(place)
        return by_folder

    def _add(self, queue: Queue, folder: _Folder, offsets: list[int], column: pa.Array) -> None:
        folders = self._gathered.setdefault(queue, {})
        folders.setdefault(folder, FolderRows()).add(offsets, column)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Write the objects of each queue, and then its mark, which commits them."""
        moved = [queue for queue, end in offsets.items() if self._is_new(queue, end)]
        self._each(moved, lambda queue: self._write(queue, offsets[queue]))

    def _is_new(self, queue: Queue, end: int) -> bool:
        mark = self._marks.get(queue, WriteProgress())
        return queue in self._gathered or mark.offset is None or mark.offset < end

    def _write(self, queue: Queue, end: int) -> None:
        objects = dict(self._objects(queue))
        # Who has read this knows that no later life had begun by then.
        mark = self._store.read(queue)
        if not objects.keys() <= set(mark.drafts):
            self._store.write(queue, mark.offset, tuple(objects))
        for key, column in objects.items():
            path = self._bucket.path(key)
            content = self._shape.content(column, path)
            write_object(self._bucket, path, content, self._shape.kind)
        self._marks[queue] = self._store.write(queue, end, self._expected(queue, end))
        self._gathered.pop(queue, None)

    def _objects(self, queue: Queue) -> Iterator[tuple[str, pa.Array]]:
        folders = self._gathered.get(queue, {})
        if not folders:
            return
        begin = self._marks.get(queue, WriteProgress()).offset
        if begin is None:
            begin = min(gathered.offsets[0] for gathered in folders.values())
        for folder, gathered in folders.items():
            for number, (first, column) in enumerate(gathered.parts(self._shape)):
                # The first is named by where the batch begins, whatever the rows before it became.
                yield self._key(queue, folder, begin if number == 0 else first), column

    def _key(self, queue: Queue, folder: _Folder, first: int) -> str:
        return object_key(self._prefix, folder, queue, first, self._shape.ending)

    def _expected(self, queue: Queue, offset: int | None) -> tuple[str, ...]:
        """Name the one object that the next batch will most likely be."""
        if offset is None or self._folders.by:
            return ()
        return (self._key(queue, queue.topic, offset),)

    def _each(self, queues: Collection[Queue], do: Callable[[Queue], Any]) -> list[Any]:
        if not queues:
            return []
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                return list(pool.map(do, queues))
        except OSError as error:
            if isinstance(error, ConnectionError):
                raise
            raise failure_of(error, f"bucket {self._bucket.name}") from error


class S3SinkConnector(SinkConnector):
    """Writes records as objects of a bucket."""

    version = "1.0"
    task = S3SinkTask
    config = SINK_KEYS

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        return sink_problems(config)

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set marks further on; what has been written is refused to be written again."""
        marks = WriteProgressFiles(Bucket(config), config["prefix"], 0)
        changes = set_by_hand(offsets)
        for queue, offset in changes.items():
            written = marks.read(queue).offset
            if written is not None and (offset is None or offset < written):
                message = (
                    f"Queue {queue.queue_id} of topic {queue.topic} on {queue.broker} has been "
                    f"written to bucket {config['bucket']} up to offset {written}; it cannot go back."
                )
                hint = "Give the connector another prefix, or remove the queue's objects and mark."
                raise ConnectorConfigError(message, hint=hint)
        for queue, offset in changes.items():
            marks.write(queue, offset, marks.read(queue).drafts)
        return True
