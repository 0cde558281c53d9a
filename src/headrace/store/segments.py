"""Segments: the files of the commit log, each named by the position of its first byte."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headrace.errors import CorruptLogError
from headrace.store.entries import HEADER_SIZE, EntryKind, parse_header
from headrace.store.fileops import FileOps, read_all, read_error

__all__ = [
    "GoneError",
    "Segment",
    "load_segments",
    "looking_again",
    "make_segment",
    "segment_path",
    "state_end",
]

_SUFFIX = ".log"
#: Each try takes a fresh view: to fail, as many deletes must have come between.
_TRIES = 5

T = TypeVar("T")


class GoneError(LookupError):
    """A part of the log that retention has deleted; who meets it looks again where to read."""


def looking_again(look: Callable[[], T]) -> T:
    """Look once more when retention, or the delete of a topic, came between."""
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
    ops: FileOps
    _mapping: memoryview = field(default_factory=lambda: memoryview(b""))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _retired: bool = False

    @property
    def end(self) -> int:
        """One past the position of the file's last byte."""
        return self.base + self.size

    def view(self, start: int, end: int) -> memoryview:
        """Give the bytes between two positions, without a copy."""
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
            When the disk does not give them.
        """
        try:
            return read_all(self.ops, self.fd, size, position - self.base)
        except OSError as error:
            raise read_error(self.path, error) from error

    def _grown(self) -> memoryview:
        """Replace the mapping by a larger one; the old one lives on in views given out."""
        with self._lock:
            if self._retired:
                raise GoneError(f"{self.path} was deleted")
            # It never goes beyond what is written, so no page of it can be missing.
            self._mapping = self.ops.map(self.fd, self.size)
            return self._mapping

    def retire(self, ops: FileOps) -> None:
        """Close a deleted file; who maps it already can go on reading."""
        with self._lock:
            self._retired = True
            ops.close(self.fd)

    def close(self, ops: FileOps) -> None:
        """Close the file; views given out stay valid."""
        self._mapping = memoryview(b"")
        ops.close(self.fd)


def segment_path(folder: Path, base: int) -> Path:
    """Name the file of the segment that begins at a position."""
    return folder / f"{base:020d}{_SUFFIX}"


def make_segment(folder: Path, base: int, ops: FileOps) -> Segment:
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
    """Position behind the STATE entry that begins a segment, or its first byte without one."""
    head = segment.read(segment.base, HEADER_SIZE)
    entry = parse_header(head, 0, segment.base)
    if entry is None or entry.kind is not EntryKind.STATE:
        return segment.base
    return min(entry.end, segment.end)


def load_segments(folder: Path, ops: FileOps) -> list[Segment]:
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
