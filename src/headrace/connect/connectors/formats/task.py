"""The task of every source that reads whole files: looks for them, reads its share, goes on."""

from __future__ import annotations

import time
import zlib
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.connect import (
    Config,
    Schema,
    SchemaError,
    SourceBatch,
    SourceRecord,
    SourceTask,
)
from headrace.connect.connectors.formats.ledger import FileLedger
from headrace.connect.connectors.formats.reading import (
    Readable,
    Rows,
    format_of,
    read_rows,
    reading_of,
)
from headrace.connect.connectors.formats.standing import FileProgress, ReadyFile
from headrace.connect.values import schema_of_arrow
from headrace.errors import ConnectionFailedError, ConnectorConfigError, DeserializationError

if TYPE_CHECKING:
    from headrace.connect.connectors.formats.ledger import LedgerFiles
    from headrace.connect.records import Position

__all__ = ["FilesTask", "shares"]

_SHARE = "task.share"
#: Files that are gone are looked for so often, s: where thousands were read, that takes a moment.
_GONE_LOOK = 60.0
_NOTHING = pa.array([], pa.string())
_NO_LEDGER = (
    "which files were read cannot be written down in %s, so each keeps a position in the commit"
    " record, which has room for some 100,000: let the task write there, or name another place by"
    " ledger.directory or ledger.prefix: %s"
)


def shares(tasks: int) -> list[Mapping[str, str]]:
    """Share files out by their names: the configs of so many tasks.

    >>> shares(2)
    [{'task.share': '0/2'}, {'task.share': '1/2'}]
    """
    return [{_SHARE: f"{number}/{tasks}"} for number in range(tasks)]


class FilesTask(SourceTask):
    """Reads its share of the files, one after the other.

    A subclass says where the files are.
    """

    @abstractmethod
    def look(self) -> Iterable[ReadyFile]:
        """Find the files that are ready, in the order in which they are read."""

    @abstractmethod
    def readable(self, name: str) -> Readable:
        """Tell how a file is opened."""

    @abstractmethod
    def partition(self, name: str) -> Mapping[str, str]:
        """Name a file as a partition of the source."""

    @abstractmethod
    def name_of(self, partition: Position) -> str | None:
        """Give the file that a partition of the source names; None: none of this source's."""

    @abstractmethod
    def ledger_files(self) -> LedgerFiles:
        """Tell where it is written down which files were read, where they are many."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Move a file away, or delete it, as ``when.done`` says."""

    def is_appendable(self, name: str, kind: str) -> bool:
        """Whether a file that has grown may have been appended to."""
        del name, kind
        return False

    def start(self, config: Config) -> None:
        """Begin to look for files."""
        self._config = config
        share = config.texts.get(_SHARE, "0/1")
        number, _, tasks = share.partition("/")
        self._number, self._tasks = int(number), int(tasks)
        self._reading = reading_of(config)
        self._standings: dict[str, FileProgress] = {}
        self._waiting: dict[str, ReadyFile] = {}
        self._looked = self._looked_for_gone = self._complained = float("-inf")
        #: Since when files are missing that were read.
        self._missing: dict[str, float] = {}
        #: Positions that are to be committed without any rows.
        self._notes: deque[tuple[Position, Position | None]] = deque()
        self._ledger = FileLedger(
            self.ledger_files(),
            share,
            self.context.generation,
            self.context.offsets,
            self._is_mine,
        )
        #: How many files are done, at most, whose positions are in the commit record.
        self._kept = len(self._recorded())
        self._pieces: Iterator[tuple[ReadyFile, Rows, FileProgress]] = iter(())

    def poll(self) -> SourceBatch | Sequence[SourceRecord] | None:
        """Give the next rows of the file that is being read, or of the next one."""
        if self._notes:
            return self._note(*self._notes.popleft())
        piece = next(self._pieces, None)
        if piece is None:
            self._pieces = self._look_through()
            if self._notes:
                # Of what was so far: what is read from now on holds behind them.
                return self._note(*self._notes.popleft())
            piece = next(self._pieces, None)
        if piece is None:
            self.context.stopping.wait(0.2)
            return None
        found, rows, standing = piece
        partition, topic = self.partition(found.name), self._config["topic"]
        if isinstance(rows, pa.Array):
            offset = standing.offset()
            return SourceBatch(
                partition=partition,
                offset=offset,
                topic=topic,
                value=rows,
                value_schema=_schema(rows.type),
            )
        places = standing.places(len(rows))
        return [
            SourceRecord(partition=partition, offset=place, topic=topic, value=row)
            for row, place in zip(rows, places, strict=True)
        ]

    def commit(self) -> None:
        """Move, delete or write down files of which every row is committed."""
        for name, found in list(self._waiting.items()):
            standing = FileProgress.of(self.context.offsets.get(self.partition(name)))
            if standing.done and standing.is_of(found):
                del self._waiting[name]
                self._finish(found)
        self._ledger.commit()
        if self._kept + self._ledger.forgotten >= self._config["ledger.after.files"]:
            self._fold()

    def _recorded(self) -> dict[str, FileProgress]:
        """Give the standings of the task's files that the commit record has."""
        found = {}
        for partition, offset in self.context.offsets.all():
            name = self.name_of(partition)
            if name is not None and self._is_mine(name):
                found[name] = FileProgress.of(offset)
        return found

    def _fold(self) -> None:
        """Write down in the ledger which files are done and stay, and forget their positions."""
        if self._notes or time.monotonic() - self._complained < _GONE_LOOK:
            return
        done = {
            name: standing
            for name, standing in self._recorded().items()
            if standing.done and standing.size is not None and self._is_at_rest(name, standing)
        }
        if len(done) + self._ledger.forgotten < self._config["ledger.after.files"]:
            return
        try:
            self._notes += self._ledger.fold(done)
        except (OSError, ConnectionFailedError, ConnectorConfigError) as error:
            self._complained = time.monotonic()
            self.context.logger.warning(_NO_LEDGER, self.ledger_files(), error)
            return
        self._kept -= len(done)
        for name in done:
            self._standings.pop(name, None)
            self._notes.append((self.partition(name), None))

    def _is_at_rest(self, name: str, committed: FileProgress) -> bool:
        keeps = self._config["when.done"] == "keep"
        return keeps and self._standings.get(name, committed) == committed

    def _look_through(self) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        """Look for files; give what is to be read of them as it is asked for."""
        if time.monotonic() - self._looked < self._config["scan.interval.ms"].total_seconds():
            return iter(())
        self._looked = time.monotonic()
        # What was committed before a restart, or when nobody said so, has waited for this.
        self.commit()
        there = list(self.look())
        self._look_for_gone({found.name for found in there})
        mine = [found for found in there if self._is_mine(found.name)]
        return self._read_all(mine, self._ledger.are_done(mine), self._recorded())

    def _read_all(
        self, mine: list[ReadyFile], are_done: list[bool], recorded: Collection[str]
    ) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        for found, done in zip(mine, are_done, strict=True):
            # What was read since, or set by hand, holds before what is written down.
            if not done or found.name in self._standings or self._is_in(found.name, recorded):
                yield from self._read(found)
            elif self._config["when.done"] != "keep":
                self.remove(found.name)
                self._ledger.forget(found.name)

    def _is_in(self, name: str, recorded: Collection[str]) -> bool:
        """Whether the commit record has a file that it had, and that may be folded since."""
        return name in recorded and self.context.offsets.get(self.partition(name)) is not None

    def _read(self, found: ReadyFile) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        try:
            kind = format_of(found.name, self._config["format"])
            appendable = self.is_appendable(found.name, kind)
            first = self._standing(found).goes_on(found, appendable=appendable)
            if first is None:
                self._wait(found)
                return
            yield from self._pieces_of(found, kind, first)
        except FileNotFoundError:
            self.context.logger.warning("%s was removed before it was read", found.name)
        except DeserializationError as error:
            if self._config["bad.files"] == "fail":
                raise
            self.context.logger.error("a file is passed over: %s", error)  # noqa: TRY400
            self._standings[found.name] = FileProgress(0, found.size, found.modified, done=True)

    def _pieces_of(
        self, found: ReadyFile, kind: str, first: int
    ) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        rows = read_rows(self.readable(found.name), kind, first, self._reading)
        piece = next(rows, None)
        row = first
        if piece is None:
            # Nothing to commit: an empty file is remembered here alone.
            self._standings[found.name] = FileProgress(row, found.size, found.modified, done=True)
            self._finish(found)
        while piece is not None:
            following = next(rows, None)
            row += len(piece)
            done = following is None
            standing = FileProgress(row, found.size, found.modified, done)
            self._standings[found.name] = standing
            if done:
                self._kept += 1
                self._wait(found)
            yield found, piece, standing
            piece = following

    def _standing(self, found: ReadyFile) -> FileProgress:
        if found.name not in self._standings:
            offset = self.context.offsets.get(self.partition(found.name))
            written = self._ledger.standing(found.name) if offset is None else None
            self._standings[found.name] = written or FileProgress.of(offset)
        return self._standings[found.name]

    def _note(self, partition: Position, offset: Position | None) -> SourceBatch:
        return SourceBatch(
            partition=partition,
            offset=offset,
            topic=self._config["topic"],
            value=_NOTHING,
        )

    def _forget(self, name: str) -> None:
        """Have the position of a file leave the commit record."""
        self._standings.pop(name, None)
        partition = self.partition(name)
        if self.context.offsets.get(partition) is not None:
            self._kept -= 1
            self._notes.append((partition, None))

    def _look_for_gone(self, there: set[str]) -> None:
        """Find files that were read and have been missing for long enough."""
        now, patience = time.monotonic(), self._config["forget.after.ms"].total_seconds()
        if now - self._looked_for_gone < min(_GONE_LOOK, patience):
            return
        self._looked_for_gone = now
        recorded = [name for name in self._recorded() if name not in there]
        written = set(self._ledger.missing(there))
        missing = written.union(recorded)
        self._missing = {name: self._missing.get(name, now) for name in missing}
        for name in [name for name in missing if now - self._missing[name] >= patience]:
            del self._missing[name]
            if name in written:
                self._ledger.forget(name)
            if name not in self._waiting:
                self._forget(name)

    def _is_mine(self, name: str) -> bool:
        return zlib.crc32(name.encode()) % self._tasks == self._number

    def _wait(self, found: ReadyFile) -> None:
        if self._config["when.done"] != "keep":
            self._waiting[found.name] = found

    def _finish(self, found: ReadyFile) -> None:
        if self._config["when.done"] != "keep":
            self.remove(found.name)
            self._forget(found.name)


def _schema(kind: pa.DataType) -> Schema | None:
    try:
        return schema_of_arrow(kind)
    except SchemaError:  # a type that only Parquet has: its rows are maps without a schema
        return None
