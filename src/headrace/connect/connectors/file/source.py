"""``file-source``: the lines of files as they are written."""

from __future__ import annotations

import glob
import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from headrace.connect import (
    Config,
    ConfigDeclaration,
    ConfigProblem,
    Size,
    SourceBatch,
    SourceConnector,
    SourceTask,
    at_least,
    declare,
    key,
    one_of,
)
from headrace.connect.connectors.file._identity import (
    FilePosition,
    LineFormat,
    Proof,
    has_proof,
    history,
    is_past_of,
    locate,
)
from headrace.connect.connectors.sharing import TaskShare, is_pattern
from headrace.connect.schema import BYTES, STRING
from headrace.errors import ConfigurationError, ConnectorConfigError, DeserializationError

if TYPE_CHECKING:
    from headrace.connect.records import Position


# One open file that grows: what was appended, and whether it is still the same file.


class ReplacedError(Exception):
    """The file no longer goes on from where the reader stands."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much is read at once."""

    #: Bytes of one read.
    chunk: int
    #: Lines of one read; ``None``: as many as the bytes hold.
    rows: int | None
    #: Bytes of the longest line.
    line: int


@dataclass(frozen=True, slots=True)
class FileLines:
    """Whole lines of a file, and where they stand."""

    file: Path
    start: int
    content: bytes
    place: FilePosition


class FileReader:
    """Reads what is appended to one file.

    Parameters
    ----------
    path
        Where the file is now.
    place
        Where to go on; what stands before it has been proven.
    """

    def __init__(
        self, path: Path, place: FilePosition, lines: LineFormat, limits: ReadLimits
    ) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._position = place.position
        self._proof = Proof.read(self._file, place.position)
        self._lines = lines
        self._limits = limits
        self._seen: tuple[int, int] | None = None

    @property
    def inode(self) -> int:
        """The file's number on its disk."""
        return os.fstat(self._file).st_ino

    def place(self) -> FilePosition:
        """Return where the reader stands."""
        return FilePosition(self._position, self.inode, self._proof.digest())

    def read(self) -> FileLines | None:
        """Return the whole lines that were appended, or ``None``; a torn last line waits.

        Raises
        ------
        ReplacedError
            When the file was cut off or written anew.
        """
        state = os.fstat(self._file)
        seen = (state.st_size, state.st_mtime_ns)
        if seen == self._seen:
            return None
        data = self._read()
        end = self._lines.end(data, self._limits.rows)
        if end < len(data) or not data:
            # What is left is torn, or waits for the next call.
            self._seen = None if end else seen
        return self._taken(data[:end]) if end else None

    def rest(self) -> FileLines | None:
        """Return a last line that lacks its end; Caller: whoever knows that nobody writes on."""
        data = self._read()
        return self._taken(data) if data else None

    def quiet(self, seconds: float) -> bool:
        """Whether nobody has written to the file for some time."""
        return time.time() - os.fstat(self._file).st_mtime >= seconds

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self) -> bytes:
        size = self._limits.chunk
        while True:
            data = os.pread(self._file, size, self._position)
            # After the read: a file that was cut off before it, or during it, does not pass.
            if not has_proof(self._file, FilePosition(self._position, proof=self._proof.digest())):
                raise ReplacedError
            if len(data) < size or self._lines.end(data):
                return data
            if size >= self._limits.line:
                raise self._too_long()
            size = min(size * 4, self._limits.line)

    def _taken(self, content: bytes) -> FileLines:
        start = self._position
        self._position += len(content)
        self._proof.add(content)
        return FileLines(self.path, start, content, self.place())

    def _too_long(self) -> DeserializationError:
        message = (
            f"{self.path}: the line at position {self._position} is longer than "
            f"line.max.bytes={self._limits.line}."
        )
        hint = "Set line.max.bytes higher, or move the connector's position behind the line."
        return DeserializationError(message, hint=hint)


# Following a path: through its file, its rotations, and what comes after them.

#: Seconds of silence after which a removed file is let go, so that its bytes leave the disk.
_ABANDONED = 60.0


class FileFollower:
    """A reader of the lines that are written to a path, each once, whatever file is behind it.

    A file that was renamed is read to its end before the one that took its name.  A file that was
    copied and cut off goes on in the copy.

    Parameters
    ----------
    path
        What is followed.
    place
        Where to go on; ``None`` for a path that was never read.
    past
        Whether the rotated pasts of a path that was never read are read first.
    patience
        Seconds without a write after which a rotated file has ended.
    """

    def __init__(
        self,
        path: Path,
        place: FilePosition | None,
        lines: LineFormat,
        limits: ReadLimits,
        *,
        past: bool = False,
        patience: float = 1.0,
        logger: logging.Logger | None = None,
    ) -> None:
        self.path = path
        self._place = place
        self._past = past
        self._lines = lines
        self._limits = limits
        self._patience = patience
        self._logger = logger or logging.getLogger(__name__)
        self._reader: FileReader | None = None

    @property
    def is_open(self) -> bool:
        """Whether the follower holds a file open."""
        return self._reader is not None

    @property
    def is_abandoned(self) -> bool:
        """Whether the file was removed, and nobody has written to it for a while."""
        reader = self._reader
        return reader is not None and not self.path.exists() and reader.quiet(_ABANDONED)

    def read(self) -> FileLines | None:
        """Return the next whole lines, or ``None`` when there are none now."""
        reader = self._reader or self._opened()
        if reader is None:
            return None
        try:
            chunk = reader.read() or self._end_of_past(reader)
        except ReplacedError:
            self._logger.info("%s was cut off or written anew", reader.path)
            self.let_go()
            return None
        if chunk is not None:
            self._place = chunk.place
        return chunk

    def let_go(self) -> None:
        """Close the file; the next :meth:`read` finds it again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _opened(self) -> FileReader | None:
        found = self._first() if self._place is None else self._found(self._place)
        if found is None:
            return None
        path, place = found
        try:
            self._reader = FileReader(path, place, self._lines, self._limits)
        except FileNotFoundError:  # rotated away at this moment
            return None
        return self._reader

    def _first(self) -> tuple[Path, FilePosition] | None:
        files = history(self.path) if self._past else [self.path]
        return (files[0], FilePosition(0)) if files and files[0].exists() else None

    def _found(self, place: FilePosition) -> tuple[Path, FilePosition] | None:
        files = history(self.path)
        if place.inode is None:
            files = files[-1:]
        if path := locate(files, place):
            return path, place
        if not self.path.exists():
            return None
        if place.position:
            self._logger.warning(
                "%s: byte %d, where its reading stood, is in no file of that name any more: "
                "it was rotated out of reach or cut off; reading goes on at its start",
                self.path,
                place.position,
            )
        return self.path, FilePosition(0)

    def _end_of_past(self, reader: FileReader) -> FileLines | None:
        """Go on from a file that has been rotated, once nobody writes to it."""
        following = self._after(reader)
        if following is None or not reader.quiet(self._patience):
            return None
        if chunk := reader.read() or reader.rest():
            return chunk
        self.let_go()
        try:
            self._reader = FileReader(following, FilePosition(0), self._lines, self._limits)
        except FileNotFoundError:  # rotated on at this moment: the next read looks again
            return None
        self._place = self._reader.place()
        return self._reader.read()

    def _after(self, reader: FileReader) -> Path | None:
        inode = reader.inode
        try:
            if self.path.stat().st_ino == inode:
                return None
            files = history(self.path)
            inodes = [one.stat().st_ino for one in files]
        except FileNotFoundError:  # being rotated at this moment: the next read looks again
            return None
        place = inodes.index(inode) if inode in inodes else len(files) - 2
        return files[place + 1]


#: Files that are gone are looked for so often, s.
_GONE_LOOK = 60.0


class FileSourceTask(SourceTask):
    """Follows its share of the files, each in turn."""

    def start(self, config: Config) -> None:
        """Look for the files."""
        self._config = config
        self._lines = LineFormat(config["encoding"], config["encoding.errors"])
        self._limits = ReadLimits(
            config["batch.max.bytes"], config["batch.max.rows"], config["line.max.bytes"]
        )
        self._share = TaskShare.of(config)
        self._followers: dict[str, FileFollower] = {}
        self._turn: list[str] = []
        self._looked_for_gone = float("-inf")
        #: Since when files are missing that were read; and those whose positions are to leave.
        self._missing: dict[str, float] = {}
        self._gone: deque[str] = deque()
        self._discovery = config["discovery.interval.ms"].total_seconds()
        self._latest = config["start"] == "latest"
        self._discover()
        self._latest = False

    def poll(self) -> SourceBatch | None:
        """Return the next lines of the file whose turn it is."""
        if self._gone:
            return self._forgotten(self._gone.popleft())
        if time.monotonic() - self._looked >= self._discovery:
            self._discover()
        for _ in range(len(self._turn)):
            name = self._turn.pop(0)
            self._turn.append(name)
            if chunk := self._followers[name].read():
                return self._batch(name, chunk)
        self._rest()
        self.context.stopping.wait(self._config["poll.interval.ms"].total_seconds())
        return None

    def stop(self) -> None:
        """Close the files."""
        for follower in self._followers.values():
            follower.let_go()

    def _batch(self, name: str, chunk: FileLines) -> SourceBatch:
        value = self._lines.split(chunk.content, chunk.file, chunk.start)
        named = self._config["key"] == "file"
        return SourceBatch(
            partition={"filename": name},
            offset=chunk.place.offset(),
            topic=self._config["topic"],
            value=value,
            key=pa.repeat(pa.scalar(name), len(value)) if named else None,
            value_schema=BYTES if pa.types.is_binary(value.type) else STRING,
            key_schema=STRING if named else None,
        )

    def _discover(self) -> None:
        self._looked = time.monotonic()
        for name, past in _paths(self._config["file"], self._known()).items():
            if name not in self._followers and self._share.has(name):
                self._followers[name] = self._follower(name, past=past)
                self._turn.append(name)
        self._look_for_gone()

    def _look_for_gone(self) -> None:
        """Find files that patterns had found, and that have been missing for long enough."""
        now, patience = time.monotonic(), self._config["forget.after.ms"].total_seconds()
        if now - self._looked_for_gone < min(_GONE_LOOK, patience):
            return
        self._looked_for_gone = now
        missing = [name for name in self._known() if self._is_missing(name)]
        self._missing = {name: self._missing.get(name, now) for name in missing}
        for name in [name for name in missing if now - self._missing[name] >= patience]:
            del self._missing[name]
            if self._followers.pop(name, None) is not None:
                self._turn.remove(name)
            if self.context.offsets.get({"filename": name}) is not None:
                self._gone.append(name)

    def _is_missing(self, name: str) -> bool:
        if name in self._config["file"] or not self._share.has(name):
            return False
        follower = self._followers.get(name)
        return not (follower is not None and follower.is_open) and not history(Path(name))

    def _forgotten(self, name: str) -> SourceBatch:
        return SourceBatch(
            partition={"filename": name},
            offset=None,
            topic=self._config["topic"],
            value=pa.array([], pa.string()),
        )

    def _known(self) -> set[str]:
        committed = (partition.get("filename") for partition, _ in self.context.offsets.all())
        return {*self._followers, *(name for name in committed if isinstance(name, str))}

    def _follower(self, name: str, *, past: bool) -> FileFollower:
        path = Path(name)
        offset = self.context.offsets.get({"filename": name})
        place = FilePosition.of(offset, path) if offset is not None else self._first_place(path)
        return FileFollower(
            path,
            place,
            self._lines,
            self._limits,
            past=past,
            patience=self._config["rotate.wait.ms"].total_seconds(),
            logger=self.context.logger,
        )

    def _first_place(self, path: Path) -> FilePosition | None:
        return FilePosition.at_end(path) if self._latest and path.exists() else None

    def _rest(self) -> None:
        """Close what was removed, and what has been silent where too many files are open."""
        holding = [name for name in self._turn if self._followers[name].is_open]
        spare = max(0, len(holding) - self._config["files.open.max"])
        for place, name in enumerate(holding):
            if place < spare or self._followers[name].is_abandoned:
                self._followers[name].let_go()


def _paths(files: Sequence[str], known: Iterable[str]) -> dict[str, bool]:
    """Return the paths to follow, and for each whether its rotated pasts count as input too."""
    found = {name: False for name in files if not is_pattern(name)}
    matched = {
        name
        for pattern in files
        if is_pattern(pattern)
        for name in glob.glob(pattern, recursive=True)  # noqa: PTH207  absolute or not, with **
        if Path(name).is_file()
    }
    live = {*known, *found, *matched}
    for name in sorted(matched):
        owner = next((one for one in live if one != name and is_past_of(name, one)), None)
        if owner is None:
            past = any(is_past_of(one, name) for one in matched)
            found[name] = found.get(name, False) or past
    return found


class FileSourceConnector(SourceConnector):
    """Reads the lines of files as records, as they are written."""

    version = "1.0"
    task = FileSourceTask
    exactly_once = True
    config: ClassVar[ConfigDeclaration] = declare(
        key(
            "file",
            list,
            "The file to follow, or several by commas; patterns such as logs/*.log also find "
            "files that come later.",
            required=True,
        ),
        key("topic", str, "The topic that the lines go to.", required=True),
        key(
            "start",
            str,
            "Where a file is begun that was never read: its first line or its end.",
            default="earliest",
            valid=one_of("earliest", "latest"),
        ),
        key(
            "encoding",
            str,
            "The files' encoding, by any name that Python knows, or bytes for lines as they are.",
            default="utf-8",
        ),
        key(
            "encoding.errors",
            str,
            "What to do with bytes that are no text.",
            default="strict",
            valid=one_of("strict", "replace", "ignore"),
        ),
        key(
            "key",
            str,
            "The records' key: none, or the path that is followed.",
            default="none",
            valid=one_of("none", "file"),
        ),
        key(
            "batch.max.rows",
            int,
            "Most lines of a poll.",
            valid=at_least(1),
            aliases=("batch.size",),
            importance="low",
        ),
        key(
            "batch.max.bytes",
            Size,
            "Most bytes of a poll.",
            default=1 << 20,
            valid=at_least(1),
            importance="low",
        ),
        key(
            "line.max.bytes",
            Size,
            "Bytes of the longest line; a longer one fails the task.",
            default=4 << 20,
            valid=at_least(1),
            importance="low",
        ),
        key(
            "poll.interval.ms",
            timedelta,
            "How long to wait before looking again for new lines.",
            default=timedelta(milliseconds=100),
            importance="low",
        ),
        key(
            "discovery.interval.ms",
            timedelta,
            "How often to look for new files that match a pattern.",
            default=timedelta(seconds=1),
            importance="low",
        ),
        key(
            "rotate.wait.ms",
            timedelta,
            "How long nobody may have written to a rotated file before the next one is begun.",
            default=timedelta(seconds=1),
            importance="low",
        ),
        key(
            "forget.after.ms",
            timedelta,
            "How long a file that a pattern has found must be gone, with all its rotated pasts, "
            "until it is forgotten: one that comes back later is read from its start.",
            default=timedelta(days=1),
            importance="low",
        ),
        key(
            "files.open.max",
            int,
            "Files that a task keeps open while nobody writes to them.",
            default=256,
            valid=at_least(1),
            importance="low",
        ),
    )

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Share the files out by their names; one file has one task."""
        files = self.context.config["file"]
        several = any(map(is_pattern, files))
        return TaskShare.configs(max_tasks if several else min(max_tasks, len(files)))

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Refuse an encoding that nobody knows."""
        try:
            LineFormat(config["encoding"])
        except ConfigurationError as error:
            yield ConfigProblem("encoding", str(error))

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Refuse what is no path, or no position in bytes."""
        del config
        for partition, offset in offsets:
            name = partition.get("filename")
            if not isinstance(name, str) or len(partition) != 1:
                message = f"The partition {dict(partition)} names no file."
                raise ConnectorConfigError(message, hint='Write {"filename": "path"}.')
            if offset is not None:
                FilePosition.of(offset, Path(name))
        return True
