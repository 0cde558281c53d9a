"""Folders of whole files: CSV, JSON lines, Parquet; read as they come, written a batch each."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec
import pyarrow as pa

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Queue,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceConnector,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.formats.task import FilesTask, shares
from headrace.connect.connectors.formats.writing import (
    READING_KEYS,
    WRITERS,
    Readable,
    ReadyFile,
    as_written,
    column_of,
    delimiter_problems,
    is_appendable,
    is_unfinished,
    joined,
    write_rows,
)
from headrace.connect.connectors.offsets import (
    KeptOffsets,
    Progress,
    changed,
    newest,
    set_by_hand,
    sync_folder,
    write_whole,
)
from headrace.errors import ConnectorConfigError, StoreError

if TYPE_CHECKING:
    from headrace.connect.records import Position


# Which files of a folder are ready.


def ready_files(folder: Path, pattern: str, settle: float) -> Iterator[ReadyFile]:
    """Yield the files that match, in the order of their names.

    Files that were written less than ``settle`` seconds ago may not be finished; nor may those
    whose names begin with a dot or an underscore, or end as unfinished files do.
    """
    latest = time.time_ns() - int(settle * 1e9)
    for path in sorted(folder.glob(pattern)):
        name = path.relative_to(folder).as_posix()
        if is_unfinished(name):
            continue
        try:
            state = path.stat()
        except FileNotFoundError:  # moved away since it was listed
            continue
        if path.is_file() and state.st_mtime_ns <= latest:
            yield ReadyFile(name, state.st_size, state.st_mtime_ns)


# Names of a sink's files: they say which offsets of which queue are within.

_NAME = re.compile(
    r"(?P<topic>[^+/]+)\+(?P<broker>[^+/]+)\+(?P<queue>\d+)\+\d{19}\+(?P<end>\d{19})\."
)


def file_name(queue: Queue, first: int, end: int, ending: str) -> str:
    """Name the file of a queue's records from ``first`` to before ``end``.

    >>> file_name(Queue("lines", "broker-a", 3), 7, 12, "csv")
    'lines+broker-a+3+0000000000000000007+0000000000000000012.csv'
    """
    return f"{queue.topic}+{queue.broker}+{queue.queue_id}+{first:019d}+{end:019d}.{ending}"


def offsets_of(files: Iterable[Path]) -> dict[Queue, int]:
    """Tell from the names of files where each queue goes on.

    >>> queue = Queue("lines", "broker-a", 3)
    >>> files = [Path(file_name(queue, 0, 7, "csv")), Path(file_name(queue, 7, 12, "csv"))]
    >>> offsets_of(files)[queue]
    12
    """
    offsets: dict[Queue, int] = {}
    for file in files:
        if match := _NAME.match(file.name):
            queue = Queue(match["topic"], match["broker"], int(match["queue"]))
            offsets[queue] = max(int(match["end"]), offsets.get(queue, 0))
    return offsets


# Whole files, written in a folder.


def write_file(path: Path, column: pa.Array, kind: str, compression: str) -> None:
    """Write a file so that it is whole as soon as it has its name.

    Caller: syncs the folder.
    """
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as file:
        write_rows(file, column, kind, compression, path.name)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


# ``directory-sink``: whole files, one per queue and batch.

_SIDE = ".offsets-{}.json"


class DirectorySinkTask(SinkTask):
    """Gathers rows; :meth:`flush` makes a file of those of each queue."""

    def start(self, config: Config) -> None:
        """Look at the folder."""
        self._config = config
        self._folder: Path = config["directory"]
        if not self._folder.is_dir():
            message = f"The folder {self._folder} does not exist."
            raise ConnectorConfigError(message, hint="Make it, or correct the key directory.")
        self._side = self._folder / _SIDE.format(self.context.task)

    def open(self, queues: Collection[Queue]) -> None:
        """Go on from the files that are there."""
        for draft in self._folder.glob("**/.*+*.tmp"):
            # Half a file, from before a crash; other tasks' drafts are none of ours.
            if offsets_of([draft.with_name(draft.name[1:])]).keys() & set(queues):
                draft.unlink()
        self._pieces: dict[Queue, list[pa.Array]] = {}
        self._begin = self.offsets()
        self._progress = Progress(self._begin)

    def offsets(self) -> dict[Queue, int]:
        """Tell from the files' names, and from what was kept of files that are gone since."""
        return _offsets(self._folder)

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Gather records."""
        by_queue: dict[Queue, list[SinkRecord]] = {}
        for record in self._progress.fresh(records):
            by_queue.setdefault(record.queue, []).append(record)
        for queue, some in by_queue.items():
            column = column_of([record.value for record in some], self._config["format"])
            self._add(queue, some[0].offset, column)
            self._progress.take(some)

    def put_batch(self, batch: SinkBatch) -> None:
        """Gather columns."""
        rows = self._progress.fresh_rows(batch)
        if len(rows) == 0:
            return
        column = as_written(rows.value, self._config["format"])
        self._add(batch.queue, rows.offset[0].as_py(), column)
        self._progress.take_rows(rows)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Write the files; each is there whole or not at all."""
        folders = set()
        for queue, pieces in self._pieces.items():
            first, end = self._begin[queue], offsets[queue]
            path = self._path(queue, first, end)
            kind = self._config["format"]
            write_file(path, joined(pieces, kind), kind, self._config["compression"])
            folders.add(path.parent)
            self._begin[queue] = end
        for folder in folders:
            sync_folder(folder)
        if folders:
            write_whole(self._side, msgspec.json.encode(KeptOffsets.of(self._begin)))
        self._pieces.clear()

    def _add(self, queue: Queue, offset: int, column: pa.Array) -> None:
        if queue not in self._pieces:
            self._begin[queue] = offset
        self._pieces.setdefault(queue, []).append(column)

    def _path(self, queue: Queue, first: int, end: int) -> Path:
        name = file_name(queue, first, end, self._config["format"])
        if not self._config["folders"]:
            return self._folder / name
        folder = self._folder / queue.topic
        if not folder.is_dir():
            folder.mkdir(exist_ok=True)
            sync_folder(self._folder)
        return folder / name


def _offsets(folder: Path) -> dict[Queue, int]:
    kept = [_kept(side) for side in folder.glob(_SIDE.format("*"))]
    return newest([offsets_of(folder.glob("**/*+*")), *kept])


def _kept(side: Path) -> dict[Queue, int]:
    try:
        return msgspec.json.decode(side.read_bytes(), type=KeptOffsets).mapping()
    except msgspec.MsgspecError as error:
        message = f"The file {side} cannot be read: {error}."
        hint = "Remove it if all files that this sink has written are still in the folder."
        raise StoreError(message, hint=hint) from error


class DirectorySinkConnector(SinkConnector):
    """Writes records as whole files into a folder."""

    version = "1.0"
    task = DirectorySinkTask
    config: ClassVar[ConfigDeclaration] = declare(
        key("directory", Path, "The folder to write to, which exists.", required=True),
        key(
            "format",
            str,
            "What the files are.",
            default="parquet",
            valid=one_of(*WRITERS),
        ),
        key(
            "folders",
            bool,
            "Whether each topic has a folder of its own below the directory.",
            default=True,
        ),
        key(
            "compression",
            str,
            "How Parquet files are compressed.",
            default="zstd",
            valid=one_of("none", "snappy", "gzip", "zstd", "lz4"),
            importance="low",
        ),
    )

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set offsets further on; what has been written is refused to be written again."""
        changes = set_by_hand(offsets)
        folder = config["directory"]
        written = _offsets(folder)
        for queue, offset in changes.items():
            if queue in written and (offset is None or offset < written[queue]):
                message = (
                    f"Queue {queue.queue_id} of topic {queue.topic} on {queue.broker} has been "
                    f"written to {folder} up to offset {written[queue]}; it cannot go back."
                )
                hint = f"Move its files and {_SIDE.format('*')} away first."
                raise ConnectorConfigError(message, hint=hint)
        side = folder / _SIDE.format(0)
        kept = changed(_kept(side) if side.exists() else {}, changes)
        write_whole(side, msgspec.json.encode(KeptOffsets.of(kept)))
        return True


# ``directory-source``: the rows of whole files that come into a folder.


class LedgerFolder:
    """A folder with segments of a ledger; it is made when the first one is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        """Name the folder."""
        return str(self._folder)

    def read(self, name: str) -> bytes | None:
        """Return a file; ``None`` where there is none."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, which is on disk before this returns."""
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._folder.parent)
        write_whole(self._folder / name, content)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self._folder / name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [one.name for one in self._folder.iterdir()] if self._folder.is_dir() else []


class DirectorySourceTask(FilesTask):
    """Reads its share of a folder's files."""

    def start(self, config: Config) -> None:
        """Look at the folder."""
        self._folder: Path = config["directory"]
        if not self._folder.is_dir():
            message = f"The folder {self._folder} does not exist."
            raise ConnectorConfigError(message, hint="Make it, or correct the key directory.")
        super().start(config)

    def look(self) -> Iterable[ReadyFile]:
        """Find the files that nobody writes to any more."""
        settle = self._config["settle.ms"].total_seconds()
        return ready_files(self._folder, self._config["files"], settle)

    def readable(self, name: str) -> Readable:
        """Tell how a file is opened."""
        path = str(self._folder / name)
        return Readable(path, partial(pa.OSFile, path))

    def partition(self, name: str) -> Mapping[str, str]:
        """Name a file by its path below the folder."""
        return {"file": name}

    def name_of(self, partition: Position) -> str | None:
        """Return the path of the file."""
        return partition.get("file")

    def is_appendable(self, name: str, kind: str) -> bool:
        """Whether a file that has grown may have been appended to."""
        return is_appendable(name, kind)

    def ledger_files(self) -> LedgerFolder:
        """Tell where it is written down which files were read, where they are many."""
        return LedgerFolder(self._config["ledger.directory"] or self._folder / ".headrace")

    def remove(self, name: str) -> None:
        """Move a file away, or delete it."""
        path = self._folder / name
        if self._config["when.done"] == "delete":
            path.unlink(missing_ok=True)
            return
        target = self._config["done.directory"] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


class DirectorySourceConnector(SourceConnector):
    """Reads files that come into a folder, whole and once."""

    version = "1.0"
    task = DirectorySourceTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = (
        declare(
            key("directory", Path, "The folder to read.", required=True),
            key("topic", str, "The topic that the rows go to.", required=True),
            key(
                "files",
                str,
                "Which files of the folder: a pattern; **/ looks into folders below too.",
                default="*",
            ),
        )
        | READING_KEYS
        | declare(
            key("done.directory", Path, "Where when.done=move moves files to."),
            key(
                "ledger.directory",
                Path,
                "Where the ledger is written; by default in .headrace in the folder that is read.  "
                "Whatever worker runs a task must find it there.",
                importance="low",
            ),
            key(
                "settle.ms",
                timedelta,
                "How long nobody must have written to a file before it counts as finished.",
                default=timedelta(seconds=1),
            ),
        )
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the files out by their names."""
        return shares(max_tasks)

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Name what does not fit together."""
        if config["when.done"] == "move":
            folder = config["done.directory"]
            if folder is None:
                yield ConfigProblem("done.directory", "when.done=move needs done.directory.")
            elif folder.absolute().is_relative_to(config["directory"].absolute()):
                message = "done.directory is within directory: files would be found again."
                yield ConfigProblem("done.directory", message)
        yield from delimiter_problems(config)
