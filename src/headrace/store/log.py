"""The commit log: entries end to end in segments, written by one thread and read by many."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headrace.errors import CorruptLogError, StoreFailedError
from headrace.store import entries, fileops

# Segments: the files of the commit log, each named by the position of its first byte.

_SUFFIX = ".log"
#: Each try takes a fresh view: to fail, as many deletes must have come between.
_TRIES = 5

T = TypeVar("T")


class GoneError(LookupError):
    """A part of the log that retention has deleted; who meets it looks again where to read."""


def looking_again(look: Callable[[], T]) -> T:
    """Look once more if retention, or the delete of a topic, came between."""
    for _ in range(_TRIES):
        with contextlib.suppress(GoneError):
            return look()
    return look()


@dataclass(slots=True, eq=False)
class Segment:
    """One file of the log, open for as long as the log is."""

    path: Path
    #: Position in the log of the file's first byte.
    base: int
    fd: int
    #: Bytes of the file that belong to the log.
    size: int
    ops: fileops.FileOps
    _mapping: memoryview = field(default_factory=lambda: memoryview(b""))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _retired: bool = False

    @property
    def end(self) -> int:
        """One past the position of the file's last byte."""
        return self.base + self.size

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes between two positions, without a copy."""
        mapping = self._mapping
        if end - self.base > len(mapping):
            mapping = self._grown()
        return mapping[start - self.base : end - self.base]

    def read(self, position: int, size: int) -> bytearray:
        """Read bytes from a position on, as many as there are.

        A read, not a mapping: a disk error is then an exception, and a file that shrinks while
        it is read is a short read instead of a signal that ends the process.

        Raises
        ------
        StoreError
            When the disk does not return them.
        """
        try:
            return fileops.read_all(self.ops, self.fd, size, position - self.base)
        except OSError as error:
            raise fileops.read_error(self.path, error) from error

    def _grown(self) -> memoryview:
        """Replace the mapping by a larger one; the old one lives on in views given out."""
        with self._lock:
            if self._retired:
                raise GoneError(f"{self.path} was deleted")
            # It never goes beyond what is written, so no page of it can be missing.
            self._mapping = self.ops.map(self.fd, self.size)
            return self._mapping

    def retire(self, ops: fileops.FileOps) -> None:
        """Close a deleted file; who maps it already can go on reading."""
        with self._lock:
            self._retired = True
            ops.close(self.fd)

    def close(self, ops: fileops.FileOps) -> None:
        """Close the file; views given out stay valid."""
        self._mapping = memoryview(b"")
        ops.close(self.fd)


def segment_path(folder: Path, base: int) -> Path:
    """Return the path of the segment that begins at a position."""
    return folder / f"{base:020d}{_SUFFIX}"


def make_segment(folder: Path, base: int, ops: fileops.FileOps) -> Segment:
    """Make an empty segment whose name is on disk on return."""
    path = segment_path(folder, base)
    fd = ops.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        ops.sync_directory(folder)
    except BaseException:
        ops.close(fd)
        with contextlib.suppress(OSError):
            ops.unlink(path)
        raise
    return Segment(path, base, fd, 0, ops)


def state_end(segment: Segment) -> int:
    """Return where the STATE ends that begins a segment, or its first byte without one."""
    head = segment.read(segment.base, entries.HEADER_SIZE)
    entry = entries.parse_header(head, 0, segment.base)
    if entry is None or entry.kind is not entries.EntryKind.STATE:
        return segment.base
    return min(entry.end, segment.end)


def load_segments(folder: Path, ops: fileops.FileOps) -> list[Segment]:
    """Open the segments of a folder, in order.

    Empty files behind the last written byte are left over from a roll and are removed.

    Raises
    ------
    CorruptLogError
        When bytes are missing between two segments.
    """
    paths = sorted(path for path in folder.glob("*" + _SUFFIX) if path.stem.isdigit())
    while len(paths) > 1 and paths[-1].stat().st_size == 0:
        ops.unlink(paths.pop())
    segments: list[Segment] = []
    try:
        for path in paths:
            fd = ops.open(path, os.O_RDWR)
            segments.append(Segment(path, int(path.stem), fd, os.fstat(fd).st_size, ops))
        _check_order(segments)
    except BaseException:
        for segment in segments:
            segment.close(ops)
        raise
    return segments


def _check_order(segments: list[Segment]) -> None:
    for before, after in itertools.pairwise(segments):
        if before.end != after.base:
            raise CorruptLogError(
                f"{before.path} ends at position {before.end} of the log, but the next segment "
                f"begins at {after.base}: {after.base - before.end} bytes are missing",
                hint="put the missing or shortened file back from a copy of this folder",
            )


#: What fills a gap, at most so much in one entry.
_GAP = memoryview(bytes(2 * 1024 * 1024))
#: Entries wait in memory up to this size before they go to the file in one call.
_PENDING_BYTES = 8 * 1024 * 1024
_EMPTY_UNIT = 2 * entries.HEADER_SIZE


class CommitLog:
    """One sequence of bytes over rolled files; positions count from the first byte ever written.

    An entry lies in one segment; a unit may span several.  A segment is on disk before the next
    one exists, so only the last can have a torn tail.  Each but the first of all begins with a
    STATE entry, so that what lies before it can be deleted.

    Caller of everything that writes: the writer thread (and recovery, before it starts).
    :meth:`view` may be called from any thread.
    """

    def __init__(
        self, folder: Path, ops: fileops.FileOps, *, segment_size: int, min_free_space: int = 0
    ) -> None:
        self._folder = folder
        self._ops = ops
        self._segment_size = segment_size
        self._min_free_space = min_free_space
        self._pending: list[fileops.Buffer] = []
        self._pending_bytes = 0
        segments = load_segments(folder, ops) or [make_segment(folder, 0, ops)]
        #: Replaced as a whole, so that a reader never sees bases and segments that differ.
        self._files = (tuple(segment.base for segment in segments), tuple(segments))
        #: One past the last byte, those that wait in memory included.
        self.end = segments[-1].end
        #: Everything before is on disk.
        self.synced = segments[-1].base
        #: Returns the payload of the STATE entry of a new segment, and the open unit.
        self.state: Callable[[], tuple[bytes, int]] | None = None
        #: Where the last segment's entries begin, behind its STATE: that one takes no room.
        self._room_from = state_end(segments[-1])

    @property
    def begin(self) -> int:
        """Position of the oldest byte that the log holds."""
        return self._files[0][0]

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self._folder

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The files, oldest first."""
        return self._files[1]

    @property
    def state_bytes(self) -> int:
        """Bytes of the STATE that begins the newest segment, 0 without one."""
        return self._room_from - self._files[1][-1].base

    def segment_at(self, position: int) -> Segment:
        """Return the segment that holds a position (the last one for the log's end).

        Raises
        ------
        GoneError
            Retention has deleted it.
        """
        bases, segments = self._files
        index = bisect_right(bases, position) - 1
        if index < 0:
            raise GoneError(f"position {position} is before the log's first, {bases[0]}")
        return segments[index]

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes between two positions of one segment, without a copy."""
        return self.segment_at(start).view(start, end)

    def place(self, payload_size: int) -> int:
        """Return where the payload of the next entry will begin; rolls when its segment is full."""
        used = self.end - self._room_from
        if used and used + entries.HEADER_SIZE + payload_size > self._segment_size:
            self._roll()
        return self.end + entries.HEADER_SIZE

    def add(
        self,
        kind: entries.EntryKind,
        payload: fileops.Buffer = b"",
        count: int = 0,
        unit: int = entries.NO_UNIT,
        flags: int = 0,
    ) -> None:
        """Append an entry, to be written by the next :meth:`flush`."""
        header = entries.pack_header(
            kind, self.end, payload, count, synced=self.synced, unit=unit, flags=flags
        )
        self._pending.append(header)
        if len(payload):
            self._pending.append(payload)
        size = entries.HEADER_SIZE + len(payload)
        self._pending_bytes += size
        self.end += size
        if self._pending_bytes >= _PENDING_BYTES:
            self.flush()

    def copy(self, base: int, content: fileops.Buffer) -> None:
        """Append whole entries of another copy of this log, into a segment that begins alike.

        Raises
        ------
        CorruptLogError
            When the other copy's segment begins where this log cannot begin one.
        """
        current = self._files[1][-1]
        if base != current.base:
            if base != self.end:
                raise CorruptLogError(
                    f"{current.path} ends at position {self.end} of the log, but the copied "
                    f"segment begins at {base}",
                    hint="empty this data folder, and follow again",
                )
            self._new_segment()
        self._pending.append(content)
        self._pending_bytes += len(content)
        self.end += len(content)
        self.flush()
        self._room_from = state_end(self._files[1][-1])

    def begin_at(self, position: int) -> None:
        """Make an empty log begin at a position, as the copy of one that lost its oldest bytes."""
        (first,) = self._files[1]
        if position == first.base:
            return
        segment = make_segment(self._folder, position, self._ops)
        self._files = ((position,), (segment,))
        self._ops.unlink(first.path)
        self._ops.sync_directory(self._folder)
        first.close(self._ops)
        self.end = self.synced = self._room_from = position

    def reach(self, position: int) -> bool:
        """Fill the log up to a position with units of no records; return False if it is beyond."""
        gap = position - self.end
        if gap >= _EMPTY_UNIT:
            self.place(gap - entries.HEADER_SIZE)
            gap = position - self.end
        if 0 < gap < _EMPTY_UNIT or gap < 0:
            return False
        while gap := position - self.end:
            size = min(gap - _EMPTY_UNIT, len(_GAP))
            if 0 < gap - _EMPTY_UNIT - size < _EMPTY_UNIT:
                size -= _EMPTY_UNIT
            self._add_empty_unit(size)
        return True

    def _add_empty_unit(self, size: int) -> None:
        """Write a unit of no records whose begin has a payload: a hole, which costs no disk."""
        self.flush()
        fileops.require_space(self._ops, self._folder, _EMPTY_UNIT, self._min_free_space)
        unit, synced = self.end, self.synced
        begin = entries.pack_header(
            entries.EntryKind.BEGIN, unit, _GAP[:size], synced=synced, unit=entries.NO_UNIT
        )
        at = unit + entries.HEADER_SIZE + size
        end = entries.pack_header(entries.EntryKind.END, at, b"", synced=synced, unit=unit)
        segment = self._files[1][-1]
        self.end += _EMPTY_UNIT + size
        fileops.write_all(self._ops, segment.fd, [begin], segment.size)
        fileops.write_all(self._ops, segment.fd, [end], segment.size + entries.HEADER_SIZE + size)
        segment.size += _EMPTY_UNIT + size

    def join(self, segment: Segment) -> None:
        """Take a file that was written and synced elsewhere as the next segment.

        Raises
        ------
        StoreFailedError
            It has its name, and whether that is on the disk is unknown.
        """
        self.sync()
        path = segment_path(self._folder, segment.base)
        self._ops.rename(segment.path, path)
        segment.path = path
        try:
            self._ops.sync_directory(self._folder)
            self._room_from = state_end(segment)
        except Exception as error:
            raise _join_error(segment, error) from error
        bases, segments = self._files
        self._files = ((*bases, segment.base), (*segments, segment))
        self.end = self.synced = segment.end

    def flush(self) -> None:
        """Write what waits to the operating system."""
        if not self._pending:
            return
        segment = self._files[1][-1]
        fileops.require_space(self._ops, self._folder, self._pending_bytes, self._min_free_space)
        fileops.write_all(self._ops, segment.fd, self._pending, segment.size)
        segment.size += self._pending_bytes
        self._pending = []
        self._pending_bytes = 0

    def sync(self) -> None:
        """Flush, and put everything on the disk.

        Raises
        ------
        StoreFailedError
            When the sync failed: what the disk holds is then unknown, and asking again would
            claim success for bytes that the system has already dropped.
        """
        self.flush()
        if self.synced == self.end:
            return
        segment = self._files[1][-1]
        try:
            self._ops.fdatasync(segment.fd)
        except OSError as error:
            raise _sync_error(segment, error) from error
        self.synced = self.end

    def settle(self, position: int) -> None:
        """Put everything on the disk, of a log of which that is known up to a position only.

        Caller: recovery; who wrote what lies behind may have seen its sync fail.

        Raises
        ------
        StoreFailedError
            What the disk holds is still unknown.
        """
        segment = self._files[1][-1]
        begin = max(position, segment.base)
        if begin < self.end:
            try:
                fileops.rewrite(
                    self._ops, segment.fd, begin - segment.base, self.end - segment.base
                )
            except OSError as error:
                raise _sync_error(segment, error) from error
        self.synced = self.end

    def cut(self, position: int) -> None:
        """Remove everything from a position on, on disk on return."""
        self._pending = []
        self._pending_bytes = 0
        bases, segments = self._files
        # An empty segment has lost its STATE: the next append makes it anew.
        kept = max(bisect_left(bases, position), 1)
        # Newest first: whatever stops this half way leaves no gap.
        for index in range(len(segments) - 1, kept - 1, -1):
            self._files = (bases[:index], segments[:index])
            self._ops.unlink(segments[index].path)
            segments[index].close(self._ops)
        last = segments[kept - 1]
        self._ops.truncate(last.fd, position - last.base)
        last.size = position - last.base
        self._room_from = state_end(last)
        self.end = position
        self.synced = min(self.synced, position)
        if kept < len(segments):
            self._ops.sync_directory(self._folder)
        self._ops.fdatasync(last.fd)

    def detach(self, position: int) -> list[Segment]:
        """Take the segments that end at or before a position out of the log, oldest first.

        Their files are still there, for :meth:`remove`.  The last segment always stays.
        """
        bases, segments = self._files
        count = min(sum(segment.end <= position for segment in segments), len(segments) - 1)
        self._files = (bases[count:], segments[count:])
        return list(segments[:count])

    def remove(self, segments: list[Segment]) -> None:
        """Delete detached segments; views given out stay valid.  Any thread may call."""
        for segment in segments:
            # One after the other, on disk each time: what a crash leaves has no gap.
            with contextlib.suppress(FileNotFoundError):
                self._ops.unlink(segment.path)
            self._ops.sync_directory(self._folder)
            segment.retire(self._ops)

    def close(self) -> None:
        """Close the files; views given out stay valid."""
        for segment in self._files[1]:
            with contextlib.suppress(OSError):
                segment.close(self._ops)

    def _roll(self) -> None:
        state = self.state() if self.state is not None else None
        self._new_segment()
        if state is not None:
            payload, unit = state
            self.add(entries.EntryKind.STATE, payload, unit=unit)
        self._room_from = self.end

    def _new_segment(self) -> None:
        self.sync()
        bases, segments = self._files
        segment = make_segment(self._folder, self.end, self._ops)
        self._files = ((*bases, segment.base), (*segments, segment))


def _join_error(segment: Segment, error: Exception) -> StoreFailedError:
    return StoreFailedError(
        f"could not take {segment.path} into the log: {error}",
        hint="check the disk, then start again: recovery keeps what reached it",
    )


def _sync_error(segment: Segment, error: OSError) -> StoreFailedError:
    return StoreFailedError(
        f"could not sync {segment.path}: {error.strerror or error}",
        hint="check the disk, then start again: recovery keeps what reached it",
    )


def scan(log: CommitLog, position: int) -> Iterator[tuple[entries.Entry, memoryview]]:
    """Yield intact entries from a position on, with their payloads; stop at the first bad one."""
    for segment in log.segments:
        if segment.end <= position:
            continue
        window = entries.Window(segment)
        while position < segment.end:
            found = entries.entry_at(window, position)
            if found is None:
                return
            yield found
            position = found[0].end


def witness_behind(log: CommitLog, damaged: int) -> entries.Entry | None:
    """Return an entry that proves that the bytes at a damaged position were once on disk."""
    position = damaged + 1
    for segment in log.segments:
        if segment.end <= position:
            continue
        window = entries.Window(segment)
        position = max(position, segment.base)
        while (found := window.find(entries.MAGIC, position)) is not None:
            candidate = entries.entry_at(window, found)
            if candidate is not None and candidate[0].synced > damaged:
                return candidate[0]
            position = candidate[0].end if candidate else found + 1
    return None


def read_state(segment: Segment) -> entries.LogState | None:
    """Read the STATE that begins a segment; None when there is none, or it is damaged."""
    entry = entries.parse_header(segment.read(segment.base, entries.HEADER_SIZE), 0, segment.base)
    if entry is None or entry.kind is not entries.EntryKind.STATE or entry.end > segment.end:
        return None
    content = memoryview(segment.read(segment.base, entries.HEADER_SIZE + entry.payload_size))
    if not entries.is_intact(entry, content, 0):
        return None
    return entries.decode_state(content[entries.HEADER_SIZE :])
