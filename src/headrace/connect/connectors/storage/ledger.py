"""The task of every source that reads whole files: looks for them, reads its share, goes on."""

from __future__ import annotations

import time
import zlib
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect import (
    Config,
    OffsetReader,
    Schema,
    SchemaError,
    SourceBatch,
    SourceRecord,
    SourceTask,
)
from headrace.connect.connectors.sharing import TaskShare
from headrace.connect.connectors.storage.formats import (
    FileProgress,
    ReadyFile,
    Rows,
    format_of,
    is_appendable,
    read_rows,
    reading_of,
)
from headrace.connect.schema import schema_of_arrow
from headrace.errors import (
    ConnectionFailedError,
    ConnectorConfigError,
    DeserializationError,
    StoreError,
)

if TYPE_CHECKING:
    from headrace.connect.connectors.storage.places import Storage
    from headrace.connect.records import Position


# Which files were read and stay, where they are more than a commit record should name.
#
# A *segment* of the ledger is a file with the standings of many files.  It lies beside what is read,
# is written once, and counts by a position in the commit record that names it, so that a few short
# positions stand for a million files.  Small segments are merged into larger ones: each file is
# written again a few times only.  What no record names counts nothing, whoever has written it.

_SCHEMA = pa.schema(
    [("name", pa.string()), ("row", pa.int64()), ("size", pa.int64()), ("modified", pa.int64())]
)
#: The row of a file that is not remembered any more.
_FORGOTTEN = -1


@dataclass(frozen=True, slots=True)
class LedgerSegment:
    """What a commit record says of a segment.

    Examples
    --------
    >>> segment = LedgerSegment("_ab-0-1-1.arrow", "0/1", 1, 3, 77)
    >>> LedgerSegment.of(segment.partition, segment.offset) == segment
    True
    """

    name: str
    #: Of which task's files: its number, and of how many tasks.
    share: str
    #: Segments with a higher number hold before others of their share.
    number: int
    files: int
    checksum: int

    @classmethod
    def of(cls, partition: Position, offset: Position) -> LedgerSegment | None:
        """Read it out of a committed position; ``None``: that is of something else."""
        name = partition.get("ledger")
        if name is None:
            return None
        return cls(name, offset["share"], offset["number"], offset["files"], offset["checksum"])

    @property
    def partition(self) -> dict[str, str]:
        """Its name in the commit record."""
        return {"ledger": self.name}

    @property
    def offset(self) -> dict[str, Any]:
        """What the commit record has of it."""
        return {
            "share": self.share,
            "number": self.number,
            "files": self.files,
            "checksum": self.checksum,
        }


class FileLedger:
    """The standings of files that are done and stay, of one task.

    Parameters
    ----------
    files
        Where the segments lie.
    share
        The task's number, and of how many: ``0/1``.
    generation
        The life of the task.
    committed
        The positions of the connector.
    is_mine
        Tells whether a file is the task's.

    Raises
    ------
    StoreError
        A segment is gone or damaged.
    """

    def __init__(
        self,
        files: Storage,
        share: str,
        generation: int,
        committed: OffsetReader,
        is_mine: Callable[[str], bool],
    ) -> None:
        self._files = files
        self._share = share
        self._generation = generation
        self._committed = committed
        found = (LedgerSegment.of(partition, offset) for partition, offset in committed.all())
        segments = sorted(filter(None, found), key=lambda one: one.number)
        otherwise = [one.number for one in segments if _tasks(one.share) != _tasks(share)]
        last = max(otherwise, default=0)
        #: The task's own, the oldest first: each has less than half of the files of the one before.
        self._own = [one for one in segments if one.share == share and one.number > last]
        #: Those from when files were shared out otherwise, and before: they stay as they are.
        self._older = [
            one
            for one in segments
            if _tasks(one.share) != _tasks(share) or (one.share == share and one.number <= last)
        ]
        self._number = max((one.number for one in segments), default=0)
        self._merged: list[LedgerSegment] = []
        self._id = self._own[0].name.split("-")[0] if self._own else f"_{uuid4().hex[:12]}"
        self._view = _SCHEMA.empty_table()
        for segment in [*self._older, *self._own]:
            self._view = _over(self._view, self._read(segment))
        if self._older:
            mine = pa.array([is_mine(name) for name in self._view["name"].to_pylist()], pa.bool_())
            self._view = self._view.filter(mine)
        self._view = _remembered(self._view)
        #: Files that are in the view, and are not to be remembered any more.
        self._gone: set[str] = set()
        #: Files that are not as the ledger has them, or that it took over, since the last look.
        self._news: dict[str, FileProgress] = {}
        self._sweep({one.name for one in segments})

    @property
    def forgotten(self) -> int:
        """How many files are forgotten, and not yet in a segment that says so."""
        return len(self._gone)

    def are_done(self, found: Sequence[ReadyFile]) -> list[bool]:
        """Tell of each file whether it has been read, and is as it was then."""
        self._news = {}
        if not self._view.num_rows:
            return [False] * len(found)
        places = pc.index_in(
            pa.array([one.name for one in found], pa.string()), value_set=_names(self._view)
        )
        known = self._view.take(places)
        size = pa.array([one.size for one in found], pa.int64())
        modified = pa.array([one.modified for one in found], pa.int64())
        same = pc.and_(pc.equal(known["size"], size), pc.equal(known["modified"], modified))
        done: list[bool] = pc.fill_null(same, fill_value=False).to_pylist()
        changed = pc.indices_nonzero(pc.and_(places.is_valid(), pc.invert(pa.array(done))))
        self._news = {
            one["name"]: FileProgress(one["row"], one["size"], one["modified"], done=True)
            for one in known.take(changed).to_pylist()
            if one["name"] not in self._gone
        }
        for place in [place for place, one in enumerate(found) if one.name in self._gone]:
            done[place] = False
        return done

    def standing(self, name: str) -> FileProgress | None:
        """Return how far a file was read that :meth:`are_done` did not tell to be done."""
        return self._news.get(name)

    def missing(self, there: Collection[str]) -> list[str]:
        """Return the files that are remembered and are not there."""
        if not self._view.num_rows:
            return []
        names = _names(self._view)
        is_there = pc.is_in(names, value_set=pa.array(list(there), pa.string()))
        absent: list[str] = names.filter(pc.invert(is_there)).to_pylist()
        return [name for name in absent if name not in self._gone]

    def forget(self, name: str) -> None:
        """Remember a file no more."""
        self._gone.add(name)
        self._news.pop(name, None)

    def fold(self, done: Mapping[str, FileProgress]) -> list[tuple[Position, Position | None]]:
        """Take over the standings of files; give the positions to commit.

        Once the first of them is committed, no record need have positions of these files.
        """
        self._gone.difference_update(done)
        table = addition = _table(done, self._gone)
        own, merged = list(self._own), []
        while own and own[-1].files < 2 * table.num_rows:
            last = own.pop()
            table = _over(self._read(last), table)
            merged.append(last)
        if not own and not self._older:
            table = _remembered(table)
        number = self._number + 1
        task = self._share.partition("/")[0]
        name = f"{self._id}-{task}-{self._generation}-{number}.arrow"
        content = _packed(table)
        segment = LedgerSegment(name, self._share, number, table.num_rows, zlib.crc32(content))
        self._files.write(name, content)
        self._view = _remembered(_over(self._view, addition))
        self._own, self._number, self._gone = [*own, segment], number, set()
        self._news.update(done)
        self._merged += merged
        return [
            (segment.partition, segment.offset),
            *((one.partition, None) for one in merged),
        ]

    def commit(self) -> None:
        """Remove segments that are merged into others, once no record needs them."""
        if not self._merged or self._committed.get(self._own[-1].partition) is None:
            return
        free = [one for one in self._merged if self._committed.get(one.partition) is None]
        self._merged = [one for one in self._merged if one not in free]
        for segment in free:
            self._files.remove(segment.name)

    def _read(self, segment: LedgerSegment) -> pa.Table:
        content = self._files.read(segment.name)
        if content is None or zlib.crc32(content) != segment.checksum:
            what = "is gone" if content is None else "is not what was written"
            message = (
                f"The file {segment.name} in {self._files} {what}; it says which"
                f" {segment.files:,} files were read."
            )
            hint = (
                "Put it back as it was; or delete the connector's offsets, and all files are read"
                " anew."
            )
            raise StoreError(message, hint=hint)
        with pa.ipc.open_file(pa.py_buffer(content)) as reader:
            table: pa.Table = reader.read_all()
            return table

    def _sweep(self, named: Collection[str]) -> None:
        """Remove what earlier lives of the task have written, and no record names."""
        if not self._own:
            return
        task = self._share.partition("/")[0]
        for name in list(self._files.names()):
            parts = name.removesuffix(".arrow").split("-")
            is_own = len(parts) == 4 and parts[:2] == [self._id, task]
            if is_own and name not in named and int(parts[2]) < self._generation:
                self._files.remove(name)


def _tasks(share: str) -> str:
    return share.partition("/")[2]


def _table(done: Mapping[str, FileProgress], gone: Collection[str]) -> pa.Table:
    read, none = list(done.values()), [0] * len(gone)
    columns = {
        "name": [*done, *gone],
        "row": [one.row for one in read] + [_FORGOTTEN] * len(gone),
        "size": [one.size for one in read] + none,
        "modified": [one.modified for one in read] + none,
    }
    return pa.table(columns, schema=_SCHEMA)


def _names(table: pa.Table) -> pa.StringArray:
    names: pa.StringArray = table["name"].combine_chunks()
    return names


def _over(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Put a table's rows in place of another's of the same files."""
    kept = older.filter(pc.invert(pc.is_in(older["name"], value_set=_names(newer))))
    return pa.concat_tables([kept, newer]).combine_chunks()


def _remembered(table: pa.Table) -> pa.Table:
    return table.filter(pc.not_equal(table["row"], _FORGOTTEN))


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, _SCHEMA, options=options) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


#: Files that are gone are looked for so often, s: where thousands were read, that takes a moment.
_GONE_LOOK = 60.0
_NOTHING = pa.array([], pa.string())
_NO_LEDGER = (
    "which files were read cannot be written down in %s, so each keeps a position in the commit"
    " record, which has room for some 100,000: let the task write there, or name another place by"
    " ledger.directory or ledger.prefix: %s"
)


class FilesTask(SourceTask):
    """Reads its share of the files, one after the other.

    A subclass says where the files are.
    """

    @abstractmethod
    def places(self, config: Config) -> tuple[Storage, Storage, Storage]:
        """Return where the files are, where their ledger is, and where those that are read go."""

    @abstractmethod
    def look(self) -> Iterable[ReadyFile]:
        """Find the files that are ready, in the order in which they are read."""

    @abstractmethod
    def partition(self, name: str) -> Mapping[str, str]:
        """Name a file as a partition of the source."""

    @abstractmethod
    def name_of(self, partition: Position) -> str | None:
        """Return the file that a partition of the source names; None: none of this source's."""

    def start(self, config: Config) -> None:
        """Begin to look for files."""
        self._config = config
        self._files, self._written, self._done = self.places(config)
        self._share = TaskShare.of(config)
        self._reading = reading_of(config)
        self._standings: dict[str, FileProgress] = {}
        self._waiting: dict[str, ReadyFile] = {}
        self._looked = self._looked_for_gone = self._complained = float("-inf")
        #: Since when files are missing that were read.
        self._missing: dict[str, float] = {}
        #: Positions that are to be committed without any rows.
        self._notes: deque[tuple[Position, Position | None]] = deque()
        self._ledger = FileLedger(
            self._written,
            str(self._share),
            self.context.generation,
            self.context.offsets,
            self._share.has,
        )
        #: How many files are done, at most, whose positions are in the commit record.
        self._kept = len(self._recorded())
        self._pieces: Iterator[tuple[ReadyFile, Rows, FileProgress]] = iter(())

    def poll(self) -> SourceBatch | Sequence[SourceRecord] | None:
        """Return the next rows of the file that is being read, or of the next one."""
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
        """Return the standings of the task's files that the commit record has."""
        found = {}
        for partition, offset in self.context.offsets.all():
            name = self.name_of(partition)
            if name is not None and self._share.has(name):
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
            self.context.logger.warning(_NO_LEDGER, self._written, error)
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
        mine = [found for found in there if self._share.has(found.name)]
        return self._read_all(mine, self._ledger.are_done(mine), self._recorded())

    def _read_all(
        self, mine: list[ReadyFile], are_done: list[bool], recorded: Collection[str]
    ) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        for found, done in zip(mine, are_done, strict=True):
            # What was read since, or set by hand, holds before what is written down.
            if not done or found.name in self._standings or self._is_in(found.name, recorded):
                yield from self._read(found)
            elif self._config["when.done"] != "keep":
                self._remove(found.name)
                self._ledger.forget(found.name)

    def _is_in(self, name: str, recorded: Collection[str]) -> bool:
        """Whether the commit record has a file that it had, and that may be folded since."""
        return name in recorded and self.context.offsets.get(self.partition(name)) is not None

    def _read(self, found: ReadyFile) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        try:
            kind = format_of(found.name, self._config["format"])
            appendable = self._files.appends and is_appendable(found.name, kind)
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
            self.context.logger.error("a file is passed over: %s", error)
            self._standings[found.name] = FileProgress(0, found.size, found.modified, done=True)

    def _pieces_of(
        self, found: ReadyFile, kind: str, first: int
    ) -> Iterator[tuple[ReadyFile, Rows, FileProgress]]:
        file = self._files.readable(found.name)
        rows = read_rows(file, kind, first, self._reading)
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

    def _wait(self, found: ReadyFile) -> None:
        if self._config["when.done"] != "keep":
            self._waiting[found.name] = found

    def _remove(self, name: str) -> None:
        if self._config["when.done"] == "move":
            self._files.move(name, self._done)
        else:
            self._files.remove(name)

    def _finish(self, found: ReadyFile) -> None:
        if self._config["when.done"] != "keep":
            self._remove(found.name)
            self._forget(found.name)


def _schema(kind: pa.DataType) -> Schema | None:
    try:
        return schema_of_arrow(kind)
    except SchemaError:  # a type that only Parquet has: its rows are maps without a schema
        return None
