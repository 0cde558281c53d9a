"""The ledger: which files were read and stay, where a commit record should not name them all.

A *segment* of the ledger is a file with the standings of many files.  It lies beside what is read,
is written once, and counts by a position in the commit record that names it, so that a few short
positions stand for a million files.  Small segments are merged into larger ones: each file is
written again a few times only.  What no record names counts nothing, whoever has written it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from headrace.connect.connectors.storage.formats import FileProgress, ReadyFile
from headrace.errors import StoreError

if TYPE_CHECKING:
    from headrace.connect import OffsetReader
    from headrace.connect.connectors.storage.places import Storage
    from headrace.connect.records import Position


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
        """Return of each file whether it has been read, and is as it was then."""
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
        """Take over the standings of files; return the positions to commit.

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
