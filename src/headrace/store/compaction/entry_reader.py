"""Walking a data file entry by entry, each checked, with reads instead of a mapping.

A disk error is then an exception, and a file that shrinks meanwhile is a short read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import CorruptLogError
from headrace.store.entries import HEADER_SIZE, MAGIC, Entry, is_intact, parse_header
from headrace.store.fileops import read_error

if TYPE_CHECKING:
    from headrace.store.fileops import FileOps

__all__ = ["Stretch", "damage_at", "next_intact", "stretches", "witness_behind"]

#: Bytes in memory at a time; a larger entry takes as much as it has.
WINDOW = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole entries that follow each other; the bytes are valid until the next one is asked for."""

    #: Position in the file of the first byte.
    position: int
    content: memoryview
    entries: list[Entry]

    @property
    def end(self) -> int:
        """One past the last byte's position in the file."""
        return self.position + len(self.content)

    def payload(self, entry: Entry) -> memoryview:
        """Give the records of an entry."""
        first = entry.payload_position - self.position
        return self.content[first : first + entry.payload_size]


def stretches(
    path: Path, first: int, size: int, ops: FileOps, *, window: int = WINDOW
) -> Iterator[Stretch]:
    """Give the entries of a file from one on, and stop at the first that is not intact.

    The caller knows by the end of the last stretch whether ``size`` was reached.

    Raises
    ------
    StoreError
        The disk could not be read.
    """
    try:
        fd = ops.open(path, os.O_RDONLY)
    except OSError as error:
        raise read_error(path, error) from error
    try:
        buffer = bytearray(min(window, max(size - first, 0)))
        filled, position = 0, first
        while position < size:
            filled = _fill(fd, buffer, filled, size - position, position, ops)
            entries, used, wanted = _parse(memoryview(buffer)[:filled], position)
            if entries:
                yield Stretch(position, memoryview(buffer)[:used], entries)
                buffer[: filled - used] = buffer[used:filled]
                position, filled = position + used, filled - used
            elif position + wanted <= size and wanted > len(buffer):
                buffer = buffer[:filled] + bytearray(wanted - filled)
            else:
                return
    except OSError as error:
        raise read_error(path, error) from error
    finally:
        ops.close(fd)


def _fill(fd: int, buffer: bytearray, filled: int, left: int, position: int, ops: FileOps) -> int:
    wanted = min(len(buffer), left)
    view = memoryview(buffer)
    while filled < wanted:
        got = ops.preadv(fd, [view[filled:wanted]], position + filled)
        if got == 0:
            break
        filled += got
    return filled


def _parse(content: memoryview, position: int) -> tuple[list[Entry], int, int]:
    """Give the intact entries at the beginning, their bytes, and what the next one needs."""
    entries: list[Entry] = []
    at = 0
    while (entry := parse_header(content, at, position + at)) is not None:
        size = HEADER_SIZE + entry.payload_size
        if at + size > len(content):
            return entries, at, size
        if not is_intact(entry, content, at):
            break
        entries.append(entry)
        at += size
    return entries, at, HEADER_SIZE


def witness_behind(path: Path, damaged: int, size: int, ops: FileOps) -> Entry | None:
    """Find an entry that proves that the bytes at a damaged position were once on disk."""
    at = damaged + 1
    while (found := _find_header(path, at, size, ops)) is not None:
        at = found + 1
        for stretch in stretches(path, found, size, ops):
            for entry in stretch.entries:
                if entry.synced > damaged:
                    return entry
            at = stretch.end
    return None


def next_intact(path: Path, at: int, size: int, ops: FileOps) -> int | None:
    """Find the next intact entry at or behind a position."""
    while (found := _find_header(path, at, size, ops)) is not None:
        for _ in stretches(path, found, size, ops):
            return found
        at = found + 1
    return None


def _find_header(path: Path, at: int, size: int, ops: FileOps) -> int | None:
    """Find the next bytes that look like the header of an entry at its place."""
    fd = ops.open(path, os.O_RDONLY)
    try:
        while at + HEADER_SIZE <= size:
            content = bytearray(min(WINDOW, size - at))
            filled = _fill(fd, content, 0, size - at, at, ops)
            found = content.find(MAGIC, 0, filled)
            while found >= 0 and found + HEADER_SIZE <= filled:
                if parse_header(content, found, at + found) is not None:
                    return at + found
                found = content.find(MAGIC, found + 1, filled)
            if filled < len(content) or filled < HEADER_SIZE:
                return None
            # A header may lie across the border to the next window.
            at += filled - HEADER_SIZE + 1
    except OSError as error:
        raise read_error(path, error) from error
    finally:
        ops.close(fd)
    return None


def damage_at(path: Path, position: int) -> CorruptLogError:
    """Say which entry of a data file is damaged."""
    return CorruptLogError(
        f"{path}: the entry at byte {position} does not match its checksum",
        hint="other messages stay readable; put the file back from a copy, or restore the queue "
        "from a replica",
    )
