"""Inspection: a walk over the files of a log that changes nothing and skips nothing.

What is intact comes as blocks of entries, everything between as stretches.  It serves ``store
verify`` and ``store repair`` alike, for the commit log and for the files of compaction logs.
"""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from headrace.errors import HeadraceError
from headrace.protocol.layout import queue_offset_of, record_starts
from headrace.protocol.transactions import COMMIT_TOPIC_SUFFIX, stored_commit
from headrace.store.compaction.recovery import stretches
from headrace.store.entries import HEADER_SIZE, MAGIC, EntryKind, Loss, QueueKey, Window, entry_at
from headrace.store.fileops import Buffer, FileOps, read_all, read_error

# Findings: what an examination of a store says, each by file and offset.


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an examination found."""

    #: ``damage`` needs a repair; a ``remark`` does not.
    severity: Literal["damage", "remark"]
    path: Path
    #: What is wrong, and what that means for the store.
    text: str
    means: str
    #: First byte in the file, and number of bytes; None when it is the file as a whole.
    offset: int | None = None
    size: int | None = None
    #: Position in the log of the first byte.
    position: int | None = None
    #: Offsets of queues that were lost with it.
    losses: tuple[Loss, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON's types.

        >>> Finding("remark", Path("checkpoint"), "is missing", "costs time").as_json()["text"]
        'is missing'
        """
        losses = [
            {"topic": loss.topic, "deleted": True}
            if loss.is_delete
            else {
                "topic": loss.topic,
                "queue": loss.queue_id,
                "first_offset": loss.first,
                "last_offset": loss.end - 1,
            }
            for loss in self.losses
        ]
        return {
            "severity": self.severity,
            "file": str(self.path),
            "text": self.text,
            "means": self.means,
            "offset": self.offset,
            "size": self.size,
            "position": self.position,
            "lost": losses,
        }


# Commit topics: records that are not commits, and newest commits that are lost.

_MEANS = "the broker passes it over, no repair is needed; the job goes on from its newest commit"


@dataclass(slots=True)
class NoCommits:
    """Records of one queue of a commit topic that are not commits."""

    key: QueueKey
    #: Where the entry of the first one stands: a byte of a file, and of the commit log.
    path: Path
    offset: int
    position: int | None
    offsets: set[int] = field(default_factory=set)

    def finding(self) -> Finding:
        """Return the finding about these records."""
        number, (topic, queue_id) = len(self.offsets), self.key
        which = "record is no commit" if number == 1 else f"{number} records are no commits"
        text = f"{which}: topic {topic!r}, queue {queue_id}, offset {min(self.offsets)}"
        more = "" if number == 1 else f" to {max(self.offsets)}"
        return Finding(
            "remark",
            self.path,
            ("a " if number == 1 else "") + text + more,
            _MEANS,
            offset=self.offset,
            position=self.position,
        )


def no_commits_in(records: Buffer) -> list[int]:
    """Return the offsets of records of a commit topic that are not commits."""
    view = memoryview(records)
    try:
        starts = record_starts(view).tolist()
    except HeadraceError:
        return []  # what is malformed is told of elsewhere
    ends = [*starts[1:], len(view)]
    pieces = [view[start:end] for start, end in zip(starts, ends, strict=True)]
    return [queue_offset_of(piece) for piece in pieces if stored_commit(piece) is None]


def no_commits_of_compaction_logs(
    store: Path, known: Iterable[NoCommits], ops: FileOps
) -> Iterator[Finding]:
    """Yield findings about records that are not commits and are gone from the commit log."""
    told = {(each.key, offset) for each in known for offset in each.offsets}
    for folder in sorted((store / "compaction").glob(f"*{COMMIT_TOPIC_SUFFIX}/*-*")):
        key = unquote(folder.parent.name), int(folder.name.partition("-")[0])
        for path in sorted(folder.glob("*.data")):
            found = NoCommits(key, path, 0, None)
            for at, offsets in _entries_of(path, ops):
                fresh = {offset for offset in offsets if (key, offset) not in told}
                if fresh and not found.offsets:
                    found.offset = at
                found.offsets |= fresh
            if found.offsets:
                yield found.finding()


def _entries_of(path: Path, ops: FileOps) -> Iterator[tuple[int, list[int]]]:
    try:
        for stretch in stretches(path, 0, path.stat().st_size, ops):
            for entry in stretch.entries:
                yield entry.position, no_commits_in(stretch.payload(entry))
    except FileNotFoundError:
        return  # replaced meanwhile


def stays_closed(losses: Iterable[Loss], next_offsets: dict[QueueKey, int]) -> str:
    """Return a text about jobs that do not open, as their newest commit is among what is lost."""
    topics = [
        repr(loss.topic)
        for loss in losses
        if loss.topic.endswith(COMMIT_TOPIC_SUFFIX)
        and not loss.is_delete
        and loss.end == next_offsets.get((loss.topic, loss.queue_id))
    ]
    if not topics:
        return ""
    return f"; the job of topic {', '.join(topics)} does not open: its newest commit is lost"


_SUFFIX = ".log"
#: As in :mod:`headrace.store.entries`; unpacked here in one loop, at the speed of the disk.
_FIELDS = struct.Struct("<4sBBHIIqqqI")
_CHECKED = HEADER_SIZE - 4
_VERSION = 1
_KINDS = frozenset(map(int, EntryKind))
#: A block is told after so many bytes, so that a bar moves.
_BLOCK_BYTES = 4 * 1024 * 1024
#: Of a larger stretch the bytes are not kept.
_KEPT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a log, open to be read."""

    path: Path
    #: Position in the log of its first byte.
    base: int
    #: One past the position of its last byte when the walk began.
    end: int
    fd: int
    ops: FileOps

    def read(self, position: int, size: int) -> bytearray:
        """Read bytes from a position on, as many as there are."""
        try:
            return read_all(self.ops, self.fd, size, position - self.base)
        except OSError as error:
            raise read_error(self.path, error) from error


class IntactEntry(NamedTuple):
    """An intact entry: the fields of its header that a walk needs.

    A tuple, as there may be a million of them in a second.
    """

    kind: int
    position: int
    payload_size: int
    records: int
    synced: int
    unit: int

    @property
    def payload_position(self) -> int:
        """Where the payload begins in the log."""
        return self.position + HEADER_SIZE

    @property
    def end(self) -> int:
        """One past the entry's last byte."""
        return self.position + HEADER_SIZE + self.payload_size


@dataclass(frozen=True, slots=True, eq=False)
class IntactEntries:
    """Intact entries, end to end."""

    path: Path
    #: Bytes from the first entry on.
    view: memoryview
    entries: list[IntactEntry]

    @property
    def end(self) -> int:
        """One past the position of the last byte."""
        return self.entries[-1].end

    def split(self, position: int) -> tuple[IntactEntries | None, IntactEntries | None]:
        """Divide it into the entries before a position and those from it on."""
        at = bisect_left(self.entries, position, key=lambda entry: entry.position)
        if at in (0, len(self.entries)):
            return (self, None) if at else (None, self)
        offset = self.entries[at].position - self.entries[0].position
        return (
            IntactEntries(self.path, self.view[:offset], self.entries[:at]),
            IntactEntries(self.path, self.view[offset:], self.entries[at:]),
        )

    def payload(self, entry: IntactEntry) -> memoryview:
        """Return the payload of one of the entries."""
        at = entry.payload_position - self.entries[0].position
        return self.view[at : at + entry.payload_size]


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A part of the log that holds no intact entry."""

    #: The file in which it lies, or would lie.
    path: Path
    position: int
    end: int
    #: ``damaged``: bytes that are no entry.  ``missing``: no bytes at all.  ``extra``: bytes
    #: behind the beginning of the next file.
    kind: Literal["damaged", "missing", "extra"]
    #: The bytes that are there, none when too many.
    content: bytes = b""

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.end - self.position


def _untold(_done: int) -> None:
    """Report to nobody how far a walk is."""


def find_log_files(folder: Path, ops: FileOps) -> list[LogFile]:
    """Open the files of a log to be read, in order; those that vanish meanwhile are left out."""
    files = []
    for path in sorted(path for path in folder.glob("*" + _SUFFIX) if path.stem.isdigit()):
        try:
            fd = ops.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        files.append(LogFile(path, int(path.stem), int(path.stem) + os.fstat(fd).st_size, fd, ops))
    return files


def walk(
    files: Sequence[LogFile], *, progress: Callable[[int], None] = _untold
) -> Iterator[IntactEntries | DamagedRange]:
    """Yield everything that a log holds, in order.

    Parameters
    ----------
    progress
        Is told how many bytes were read since it was told last.
    """
    for file, following in itertools.zip_longest(files, files[1:]):
        stop = file.end if following is None else min(file.end, following.base)
        yield from walk_file(file, stop, progress)
        if following is None:
            continue
        if file.end > stop:
            extra = bytes(file.read(stop, file.end - stop))
            yield DamagedRange(file.path, stop, file.end, "extra", extra)
        elif following.base > stop:
            yield DamagedRange(file.path, stop, following.base, "missing")


def walk_file(
    file: LogFile, stop: int, progress: Callable[[int], None] = _untold
) -> Iterator[IntactEntries | DamagedRange]:
    """Yield what one file holds up to a position."""
    window = Window(file)
    position = file.base
    while position < stop:
        block = _block(file.path, window, position, stop)
        if block is not None:
            yield block
            end = block.end
        else:
            end = _next_entry(window, position + 1, stop)
            kept = end - position if end - position <= _KEPT_BYTES else 0
            content = bytes(window.at(position, kept)[:kept])
            yield DamagedRange(file.path, position, end, "damaged", content)
        progress(end - position)
        position = end


def _next_entry(window: Window, position: int, stop: int) -> int:
    while (found := window.find(MAGIC, position)) is not None and found < stop:
        if entry_at(window, found) is not None:
            return found
        position = found + 1
    return stop


def _block(path: Path, window: Window, position: int, stop: int) -> IntactEntries | None:
    """Take intact entries from a position on, as many as are in memory."""
    view = window.at(position, HEADER_SIZE)
    header = _FIELDS.unpack_from(view) if len(view) >= HEADER_SIZE else None
    if header is not None and header[0] == MAGIC and header[6] == position:
        # The size comes from the disk: the window never reads beyond the file for it.
        view = window.at(position, HEADER_SIZE + header[4])
    entries = list(_intact(view[: max(stop - position, 0)], position))
    return IntactEntries(path, view, entries) if entries else None


def _intact(view: memoryview, position: int) -> Iterable[IntactEntry]:
    unpack, crc32 = _FIELDS.unpack_from, zlib.crc32
    at, last = 0, len(view) - HEADER_SIZE
    limit = min(last, _BLOCK_BYTES)
    while at <= limit:
        magic, version, kind, _, size, count, own, synced, unit, crc = unpack(view, at)
        end = at + HEADER_SIZE + size
        if (
            magic != MAGIC
            or own != position + at
            or end > len(view)
            or version != _VERSION
            or kind not in _KINDS
        ):
            return
        checked = crc32(view[at : at + _CHECKED])
        if crc32(view[at + HEADER_SIZE : end], checked) != crc:
            return
        yield IntactEntry(kind, own, size, count, synced, unit)
        at = end
