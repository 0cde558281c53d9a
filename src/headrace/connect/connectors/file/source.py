"""``file-source``: the lines of files as they are written."""

from __future__ import annotations

import glob
import time
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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
from headrace.connect.connectors.file._following import Follower
from headrace.connect.connectors.file._identity import Place, history, is_past_of
from headrace.connect.connectors.file._lines import LineFormat
from headrace.connect.connectors.file._reader import Chunk, Limits
from headrace.connect.schema import BYTES, STRING
from headrace.errors import ConfigurationError, ConnectorConfigError

if TYPE_CHECKING:
    from headrace.connect.records import Position

__all__ = ["FileSourceConnector", "FileSourceTask"]

_SHARE = "task.share"
_PATTERN = frozenset("*?[")
#: Files that are gone are looked for so often, s.
_GONE_LOOK = 60.0


class FileSourceTask(SourceTask):
    """Follows its share of the files, each in turn."""

    def start(self, config: Config) -> None:
        """Look for the files."""
        self._config = config
        self._lines = LineFormat(config["encoding"], config["encoding.errors"])
        self._limits = Limits(
            config["batch.max.bytes"], config["batch.max.rows"], config["line.max.bytes"]
        )
        number, _, tasks = config.texts.get(_SHARE, "0/1").partition("/")
        self._number, self._tasks = int(number), int(tasks)
        self._followers: dict[str, Follower] = {}
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
        """Give the next lines of the file whose turn it is."""
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

    def _batch(self, name: str, chunk: Chunk) -> SourceBatch:
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
            if name not in self._followers and self._is_mine(name):
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
        if name in self._config["file"] or not self._is_mine(name):
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

    def _is_mine(self, name: str) -> bool:
        # Spread by name: a file that comes later finds its task without a new configuration.
        return zlib.crc32(name.encode()) % self._tasks == self._number

    def _follower(self, name: str, *, past: bool) -> Follower:
        path = Path(name)
        offset = self.context.offsets.get({"filename": name})
        place = Place.of(offset, path) if offset is not None else self._first_place(path)
        return Follower(
            path,
            place,
            self._lines,
            self._limits,
            past=past,
            patience=self._config["rotate.wait.ms"].total_seconds(),
            logger=self.context.logger,
        )

    def _first_place(self, path: Path) -> Place | None:
        return Place.at_end(path) if self._latest and path.exists() else None

    def _rest(self) -> None:
        """Close what was removed, and what has been silent where too many files are open."""
        holding = [name for name in self._turn if self._followers[name].is_open]
        spare = max(0, len(holding) - self._config["files.open.max"])
        for place, name in enumerate(holding):
            if place < spare or self._followers[name].is_abandoned:
                self._followers[name].let_go()


def _is_pattern(name: str) -> bool:
    return not _PATTERN.isdisjoint(name)


def _paths(files: Sequence[str], known: Iterable[str]) -> dict[str, bool]:
    """Give the paths to follow, and for each whether its rotated pasts count as input too."""
    found = {name: False for name in files if not _is_pattern(name)}
    matched = {
        name
        for pattern in files
        if _is_pattern(pattern)
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
    """Gives the lines of files as records, as they are written; see docs/connect-connectors.md."""

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
        tasks = max_tasks if any(map(_is_pattern, files)) else min(max_tasks, len(files))
        return [{_SHARE: f"{number}/{tasks}"} for number in range(tasks)]

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
                Place.of(offset, Path(name))
        return True
