"""``files-sink``: rows as whole files, each row once."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Queue,
    SchemaError,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
    Size,
    at_least,
    declare,
    each,
    key,
    one_of,
)
from headrace.connect.connectors.offsets import Progress, set_by_hand
from headrace.connect.connectors.storage.formats import (
    WRITERS,
    as_written,
    column_of,
    joined,
    write_rows,
)
from headrace.connect.connectors.storage.places import (
    PLACE,
    S3_KEYS,
    Storage,
    opened,
    place_problems,
)
from headrace.errors import ConnectorConfigError, FencedError, StoreError

if TYPE_CHECKING:
    from headrace.connect.records import Position


# Files out of rows: what a batch of a queue is cut into, and how each is written.

#: What compresses lines, and how the names of compressed files end.
_ENDINGS = {"gzip": ".gz", "zstd": ".zst"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What files are like.

    Examples
    --------
    >>> Shape("csv", "gzip").ending, Shape("parquet", "gzip").ending
    ('csv.gz', 'parquet')
    """

    format: str
    compression: str
    #: Most rows of a file.
    rows: int = 1_000_000
    #: Most bytes of a file, as its rows take up memory.
    bytes: int = 128 << 20

    @property
    def ending(self) -> str:
        """How names of files end."""
        return self.format + ("" if self._outer is None else _ENDINGS[self._outer])

    @property
    def _outer(self) -> str | None:
        # Parquet compresses within.
        return None if self.format == "parquet" or self.compression == "none" else self.compression

    def content(self, column: pa.Array, name: str) -> pa.Buffer:
        """Make a file of rows.

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
        """Cut the rows into files; yield each with the offset of its first row."""
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
    """The folder of each row.

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
    #: Whether each topic has a folder, which holds these.
    topics: bool = True

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

    def path(self, topic: str, folder: str = "") -> str:
        """Return the whole path of a folder.

        >>> Folders().path("lines", "day=7"), Folders(topics=False).path("lines")
        ('lines/day=7', '')
        """
        return "/".join(filter(None, (topic if self.topics else "", folder)))

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


# How far each queue has been written: a small file per queue, the queue's mark, beside the rows.


def file_name(folder: str, queue: Queue, first: int, ending: str) -> str:
    """Name the file that begins with an offset of a queue.

    >>> file_name("lines/day=7", Queue("lines", "broker-a", 3), 12, "csv.gz")
    'lines/day=7/lines+broker-a+3+0000000000000000012.csv.gz'
    """
    return f"{folder}/{_queue_name(queue)}+{first:019d}.{ending}".lstrip("/")


def _queue_name(queue: Queue) -> str:
    return "+".join((quote(queue.topic, safe="%"), quote(queue.broker, safe=""), str(queue[2])))


class QueueMark(msgspec.Struct, frozen=True):
    """How far one queue has been written.

    The offset is what commits: files from it on are of a batch that was not finished.
    """

    #: The next offset; ``None`` where nothing has been written.
    offset: int | None = None
    #: The life of the task that has the queue.
    generation: int = 0
    #: Names of files that may be there though their batch was not finished.
    drafts: tuple[str, ...] = ()
    #: Names of files of the last batch, which may not all be shown.
    staged: tuple[str, ...] = ()


class QueueMarks:
    """Reads and writes marks.

    Parameters
    ----------
    files
        Where they are.
    generation
        The life of this task; 0 is nobody's.
    """

    def __init__(self, files: Storage, generation: int) -> None:
        self._files = files.below("_headrace")
        self._generation = generation

    def read(self, queue: Queue) -> QueueMark:
        """Return the mark of a queue, as it is now.

        Raises
        ------
        FencedError
            Where a later life of the task has the queue.
        """
        name = f"{_queue_name(queue)}.json"
        text = self._files.read(name)
        if text is None:
            return QueueMark()
        path = self._files.path(name)
        try:
            mark = msgspec.json.decode(text, type=QueueMark)
        except msgspec.MsgspecError as error:
            message = f"{path} cannot be read: {error}."
            hint = 'Write it as it was, such as {"offset": 7}.'
            raise StoreError(message, hint=hint) from error
        if 0 < self._generation < mark.generation:
            raise FencedError(
                f"{path} says that generation {mark.generation} writes this queue, and this task"
                f" is of generation {self._generation}.",
                hint="Another task has taken over, or another cluster has written there: then give"
                " this connector a place of its own, or set its offsets by hand to take over.",
            )
        return mark

    def write(self, queue: Queue, mark: QueueMark, before: QueueMark | None = None) -> QueueMark:
        """Set the mark of a queue, unless it is as before; return it."""
        mark = msgspec.structs.replace(mark, generation=self._generation)
        if mark != before:
            self._files.write(f"{_queue_name(queue)}.json", msgspec.json.encode(mark))
        return mark


#: So many queues are opened or written at once.
_AT_ONCE = 8
_Folder = str


class FilesSinkTask(SinkTask):
    """Gathers rows; :meth:`flush` makes files of those of each queue, and then moves its mark."""

    def start(self, config: Config) -> None:
        """Look at the place."""
        self._files = opened(config).at(config["uri"])
        whole = config["format"] == "parquet"
        self._shape = Shape(
            config["format"],
            config["compression"] or ("zstd" if whole else self._files.compression),
            config["file.max.rows"],
            config["file.max.bytes"],
        )
        self._folders = Folders(
            tuple(config["partition.by"]),
            tuple(config["partition.fields"]),
            config["partition.time.field"],
            config["partition.time.format"],
            ZoneInfo(config["partition.time.zone"]),
            topics=config["folders"],
        )
        self._store = QueueMarks(self._files, self.context.generation)
        self._marks: dict[Queue, QueueMark] = {}
        self._gathered: dict[Queue, dict[_Folder, FolderRows]] = {}
        self._progress = Progress({})

    def open(self, queues: Collection[Queue]) -> None:
        """Take queues over: files of a batch that was not finished are removed."""
        self._gathered = {}
        self._marks = dict(zip(queues, self._each(queues, self._take_over), strict=True))
        self._progress = Progress(self.offsets())

    def _take_over(self, queue: Queue) -> QueueMark:
        mark = self._store.read(queue)
        for name in mark.staged:
            self._files.publish(name)
        for name in mark.drafts:
            self._files.discard(name)
        drafts = self._expected(queue, mark.offset)
        return self._store.write(queue, msgspec.structs.replace(mark, drafts=drafts), mark)

    def offsets(self) -> dict[Queue, int]:
        """Return from the marks how far each queue has been written."""
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
                by_folder[self._folders.path(record.topic, folder)].append(record)
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
            return {self._folders.path(topic): list(range(len(rows)))}
        fields = {name: field_of_column(rows.value, name) for name in self._folders.needed}
        times = [None] * len(rows) if rows.timestamp_ms is None else rows.timestamp_ms.to_pylist()
        by_folder: dict[_Folder, list[int]] = defaultdict(list)
        for place, folder in enumerate(self._folders.of_rows(fields, times)):
            if isinstance(folder, SchemaError):
                [record] = rows[place : place + 1].records()
                self.context.report(record, folder)
            else:
                by_folder[self._folders.path(topic, folder)].append(place)
        return by_folder

    def _add(self, queue: Queue, folder: _Folder, offsets: list[int], column: pa.Array) -> None:
        folders = self._gathered.setdefault(queue, {})
        folders.setdefault(folder, FolderRows()).add(offsets, column)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Write the files of each queue, and then its mark, which commits them."""
        moved = [queue for queue, end in offsets.items() if self._is_new(queue, end)]
        self._each(moved, lambda queue: self._write(queue, offsets[queue]))

    def _is_new(self, queue: Queue, end: int) -> bool:
        mark = self._marks.get(queue, QueueMark())
        return queue in self._gathered or mark.offset is None or mark.offset < end

    def _write(self, queue: Queue, end: int) -> None:
        files = dict(self._cut(queue))
        # Who has read this knows that no later life had begun by then.
        mark = self._store.read(queue)
        if not files.keys() <= set(mark.drafts):
            self._store.write(queue, QueueMark(mark.offset, drafts=tuple(files)))
        for name, column in files.items():
            self._files.stage(name, self._shape.content(column, self._files.path(name)))
        done = QueueMark(end, drafts=self._expected(queue, end), staged=tuple(files))
        self._marks[queue] = self._store.write(queue, done)
        for name in files:
            self._files.publish(name)
        self._gathered.pop(queue, None)

    def _cut(self, queue: Queue) -> Iterator[tuple[str, pa.Array]]:
        folders = self._gathered.get(queue, {})
        if not folders:
            return
        begin = self._marks.get(queue, QueueMark()).offset
        if begin is None:
            begin = min(gathered.offsets[0] for gathered in folders.values())
        for folder, gathered in folders.items():
            for number, (first, column) in enumerate(gathered.parts(self._shape)):
                # The first is named by where the batch begins, whatever the rows before it became.
                yield self._name(queue, folder, begin if number == 0 else first), column

    def _name(self, queue: Queue, folder: _Folder, first: int) -> str:
        return file_name(folder, queue, first, self._shape.ending)

    def _expected(self, queue: Queue, offset: int | None) -> tuple[str, ...]:
        """Name the one file that the next batch will most likely be."""
        if offset is None or self._folders.by:
            return ()
        return (self._name(queue, self._folders.path(queue.topic), offset),)

    def _each(self, queues: Collection[Queue], do: Callable[[Queue], Any]) -> list[Any]:
        if not queues:
            return []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(do, queues))


def _set_marks(files: Storage, offsets: Sequence[tuple[Position, Position | None]]) -> None:
    """Set marks further on; what has been written is refused to be written again."""
    marks, changes = QueueMarks(files, 0), set_by_hand(offsets)
    for queue, offset in changes.items():
        written = marks.read(queue).offset
        if written is not None and (offset is None or offset < written):
            message = (
                f"Queue {queue.queue_id} of topic {queue.topic} on {queue.broker} has been "
                f"written to {files} up to offset {written}; it cannot go back."
            )
            hint = "Give the connector another place, or remove the queue's files and mark."
            raise ConnectorConfigError(message, hint=hint)
    for queue, offset in changes.items():
        marks.write(queue, msgspec.structs.replace(marks.read(queue), offset=offset))


class FilesSinkConnector(SinkConnector):
    """Writes records as whole files into a folder or a bucket."""

    version = "1.0"
    task = FilesSinkTask
    config: ClassVar[ConfigDeclaration] = declare(
        key(
            "uri",
            str,
            "Where to write: a folder (its path, or file:///folder), which exists, or below a "
            "prefix of a bucket (s3://bucket/prefix).",
            required=True,
            valid=PLACE,
        ),
        key("format", str, "What the files are.", default="parquet", valid=one_of(*WRITERS)),
        key(
            "compression",
            str,
            "How files are compressed: zstd where nothing is said, except for lines in a folder, "
            "which are not; snappy and lz4 are for Parquet alone.",
            valid=one_of("none", "gzip", "lz4", "snappy", "zstd"),
        ),
        key("folders", bool, "Whether each topic has a folder of its own.", default=True),
        key(
            "partition.by",
            list,
            "What decides on folders below the topic's, in this order: field, time or both; "
            "without, there are none.",
            default=[],
            valid=each(one_of("field", "time")),
        ),
        key(
            "partition.fields",
            list,
            "The fields that partition.by=field makes folders of, such as country=de; dots lead "
            "into structs.",
            default=[],
        ),
        key(
            "partition.time.field",
            str,
            "The field with the time: milliseconds since 1970, ISO 8601 or a timestamp; the "
            "record's own time without it.",
        ),
        key(
            "partition.time.format",
            str,
            "The folders of a time, as strftime writes them.",
            default="year=%Y/month=%m/day=%d/hour=%H",
        ),
        key("partition.time.zone", str, "The zone of these folders.", default="UTC"),
        key(
            "file.max.rows",
            int,
            "Most rows of a file; a batch with more makes several.",
            default=1_000_000,
            valid=at_least(1),
        ),
        key(
            "file.max.bytes",
            Size,
            "Most bytes of a file, as its rows take up memory before they are written.",
            default=128 << 20,
            valid=at_least(1),
        ),
        *S3_KEYS,
    )

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        yield from place_problems(config)
        compression = config["compression"]
        if compression in {"lz4", "snappy"} and config["format"] != "parquet":
            message = f"{compression} is for Parquet: choose gzip, zstd or none."
            yield ConfigProblem("compression", message)
        if ("field" in config["partition.by"]) != bool(config["partition.fields"]):
            message = (
                "partition.by=field and partition.fields belong together: give both, or neither."
            )
            yield ConfigProblem("partition.fields", message)
        try:
            ZoneInfo(config["partition.time.zone"])
        except (ZoneInfoNotFoundError, ValueError):
            message = (
                f"There is no time zone {config['partition.time.zone']}: Europe/Berlin is one."
            )
            yield ConfigProblem("partition.time.zone", message)

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set offsets further on; what has been written is refused to be written again."""
        _set_marks(opened(config).at(config["uri"]), offsets)
        return True
