"""``file-sink``: records as lines at the end of a file, each exactly once."""

from __future__ import annotations

import fcntl
import glob
import logging
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import msgspec
import pyarrow as pa

from headrace.connect import (
    Config,
    ConfigDeclaration,
    Queue,
    SinkBatch,
    SinkConnector,
    SinkRecord,
    SinkTask,
    Size,
    at_least,
    declare,
    key,
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
from headrace.connect.connectors.texts import as_text, lines_of
from headrace.errors import ConnectorConfigError, StoreError, StoreLockedError

if TYPE_CHECKING:
    from headrace.connect.records import Position


# The file of a sink: appended, cut back to what is committed, rotated.

_BUFFER = 1 << 20

logger = logging.getLogger(__name__)


class CommittedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What counts in an output file, kept in a side file beside it."""

    #: Bytes of the file that are committed; what follows is cut off at the next start.
    length: int
    #: Where each queue goes on.
    offsets: KeptOffsets = KeptOffsets()
    #: Files that were rotated away before.
    rotated: int = 0
    #: Whether the file is about to be renamed.
    rotating: bool = False
    #: When the file was begun, in milliseconds since 1970.
    begun_ms: int = 0

    @classmethod
    def read(cls, side: Path) -> CommittedOutput | None:
        """Read a side file; ``None`` when there is none."""
        try:
            return msgspec.json.decode(side.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            message = f"The side file {side} cannot be read: {error}."
            hint = "Restore it; or remove it, and the sink appends with what the runtime knows."
            raise StoreError(message, hint=hint) from error


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a file has had enough; ``None``: never for that reason."""

    size: int | None
    age: timedelta | None

    def is_due(self, length: int, begun_ms: int) -> bool:
        """Whether a file of this length and age is rotated; an empty one never is."""
        if length == 0:
            return False
        if self.size is not None and length >= self.size:
            return True
        age = timedelta(milliseconds=time.time() * 1000 - begun_ms)
        return self.age is not None and age >= self.age


class OutputFile:
    """An output file that holds what was committed, and nothing else after a crash.

    Parameters
    ----------
    path
        The file; its folder must exist.
    """

    def __init__(self, path: Path, rotation: Rotation) -> None:
        self.path = path
        self.side = side_of(path)
        self._rotation = rotation
        self._file = self._opened()
        try:
            self._committed = self._recovered()
        except BaseException:
            self._file.close()
            raise

    @property
    def offsets(self) -> dict[Queue, int]:
        """The next offset of each queue, as of the last commit."""
        return self._committed.offsets.mapping()

    def append(self, content: bytes | memoryview) -> None:
        """Write at the end; it counts from the next :meth:`commit` on."""
        self._file.write(content)

    def commit(self, offsets: Mapping[Queue, int]) -> None:
        """Make what was appended count, together with where the queues go on."""
        length = self._file.tell()
        kept = KeptOffsets.of(self.offsets | dict(offsets))
        if (length, kept) != (self._committed.length, self._committed.offsets):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._keep(length=length, offsets=kept)
        if self._rotation.is_due(self._committed.length, self._committed.begun_ms):
            self._rotate()

    def roll_back(self) -> None:
        """Cut off what was appended since the last commit."""
        self._file.flush()
        self._file.truncate(self._committed.length)
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Close the file; what was not committed is cut off at the next start."""
        self._file.close()

    def _opened(self) -> BinaryIO:
        try:
            file = self.path.open("ab", buffering=_BUFFER)
        except FileNotFoundError:
            message = f"The folder {self.path.parent} of the file {self.path} does not exist."
            hint = "Make the folder, or name another file."
            raise ConnectorConfigError(message, hint=hint) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            message = f"The file {self.path} is being written by another process."
            hint = "Give each connector a file of its own; stop the other writer."
            raise StoreLockedError(message, hint=hint) from None
        sync_folder(self.path.parent)
        return file

    def _recovered(self) -> CommittedOutput:
        size = self._file.tell()
        found = CommittedOutput.read(self.side)
        if found is None:
            # Before anything is appended: what was there belongs to somebody else, and stays.
            return self._write(CommittedOutput(length=size, begun_ms=_now_ms()))
        if found.rotating:
            self._committed = found
            self._finish_rotation()
            return self._committed
        if size < found.length:
            logger.warning(
                "%s has %d bytes, and %d had been committed: somebody cut it off or removed it; "
                "writing goes on at its end",
                self.path,
                size,
                found.length,
            )
            return self._write(msgspec.structs.replace(found, length=size))
        self._file.truncate(found.length)
        self._file.seek(0, os.SEEK_END)
        return found

    def _rotate(self) -> None:
        self._keep(rotating=True)
        self._finish_rotation()

    def _finish_rotation(self) -> None:
        number = self._committed.rotated + 1
        target = self.path.with_name(f"{self.path.name}.{number:06d}")
        if not target.exists():
            os.truncate(self.path, self._committed.length)
            self.path.rename(target)
        self._file.close()
        self._file = self._opened()
        self._keep(length=0, rotated=number, rotating=False, begun_ms=_now_ms())

    def _keep(self, **changes: object) -> None:
        self._committed = self._write(msgspec.structs.replace(self._committed, **changes))

    def _write(self, committed: CommittedOutput) -> CommittedOutput:
        write_whole(self.side, msgspec.json.encode(committed))
        return committed


def alter(path: Path, side: Path, changes: Mapping[Queue, int | None]) -> None:
    """Set the offsets that a side file keeps by hand."""
    found = CommittedOutput.read(side)
    if found is None:
        length = path.stat().st_size if path.exists() else 0
        found = CommittedOutput(length=length, begun_ms=_now_ms())
    offsets = KeptOffsets.of(changed(found.offsets.mapping(), changes))
    write_whole(side, msgspec.json.encode(msgspec.structs.replace(found, offsets=offsets)))


def side_of(path: Path) -> Path:
    """Name the side file of an output file.

    >>> side_of(Path("out/a.txt")).as_posix()
    'out/.a.txt.committed'
    """
    return path.with_name(f".{path.name}.committed")


def _now_ms() -> int:
    return int(time.time() * 1000)


_TASK = "{task}"


class FileSinkTask(SinkTask):
    """Appends lines; :meth:`flush` makes them durable together with their offsets."""

    def start(self, config: Config) -> None:
        """Open the file, and cut off what was never committed."""
        self._name = str(config["file"])
        path = Path(self._name.replace(_TASK, str(self.context.task)))
        self._end = config["line.end"].encode().decode("unicode_escape").encode()
        rotation = Rotation(config["rotate.max.bytes"], config["rotate.interval.ms"])
        self._output = OutputFile(path, rotation)

    def open(self, queues: Collection[Queue]) -> None:
        """Go on from what is committed."""
        del queues
        self._output.roll_back()
        self._progress = Progress(self.offsets())

    def offsets(self) -> dict[Queue, int]:
        """Return what the side files of all tasks keep: queues may have moved among them."""
        kept = (CommittedOutput.read(side) for side in _sides(Path(self._name)))
        return newest(one.offsets.mapping() for one in kept if one is not None)

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Append a line per record."""
        fresh = self._progress.fresh(records)
        self._append([record.value for record in fresh])
        self._progress.take(fresh)

    def put_batch(self, batch: SinkBatch) -> None:
        """Append a line per row."""
        rows = self._progress.fresh_rows(batch)
        column = rows.value
        kind = column.type
        plain = pa.types.is_string(kind) or pa.types.is_binary(kind)
        if plain and not column.null_count:
            for piece in lines_of(column, self._end):
                self._output.append(piece)
        else:
            self._append(column.to_pylist())
        self._progress.take_rows(rows)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Commit the lines and the offsets as one."""
        self._output.commit(offsets)

    def stop(self) -> None:
        """Close the file."""
        if output := getattr(self, "_output", None):
            output.close()

    def _append(self, values: Iterable[Any]) -> None:
        end = self._end
        self._output.append(b"".join([as_text(value) + end for value in values]))


def _sides(path: Path) -> list[Path]:
    """Return the side files of all tasks of a connector."""
    pattern = "*".join(map(glob.escape, side_of(path).name.split(_TASK)))
    return sorted(path.parent.glob(pattern))


class FileSinkConnector(SinkConnector):
    """Appends records to a file as lines."""

    version = "1.0"
    task = FileSinkTask
    config: ClassVar[ConfigDeclaration] = declare(
        key(
            "file",
            Path,
            "The file to append to, in a folder that exists; with {task} in its name each task "
            "has a file of its own.",
            required=True,
        ),
        key(
            "line.end",
            str,
            r"What ends a line; \n, \r and \t are understood.",
            default=r"\n",
            importance="low",
        ),
        key(
            "rotate.max.bytes",
            Size,
            "Rename the file to FILE.000001 and so on once it has this size; by default never.",
            valid=at_least(1),
        ),
        key(
            "rotate.interval.ms",
            timedelta,
            "Rename the file likewise once it is this old; by default never.",
            valid=at_least(timedelta(milliseconds=1)),
        ),
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """One file has one writer."""
        several = _TASK in str(self.context.config["file"])
        return [{} for _ in range(max_tasks if several else 1)]

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Set the offsets that the side files keep; lines that come again are written again."""
        changes = set_by_hand(offsets)
        path = Path(str(config["file"]).replace(_TASK, "0"))
        for side in _sides(config["file"]) or [side_of(path)]:
            alter(path, side, changes)
        return True
