"""Scanning the log: entry after entry, each checked, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from headrace.store.entries import HEADER_SIZE, MAGIC, Entry, is_intact, parse_header

if TYPE_CHECKING:
    from headrace.store.log import CommitLog

__all__ = ["Source", "Window", "entry_at", "scan", "witness_behind"]

_WINDOW = 16 * 1024 * 1024


class Source(Protocol):
    """What a window looks into: a segment, or a file that is only inspected."""

    @property
    def base(self) -> int:
        """Position of the first byte."""

    @property
    def end(self) -> int:
        """One past the position of the last byte."""

    def read(self, position: int, size: int) -> bytearray:
        """Read bytes from a position on, as many as there are."""


class Window:
    """A stretch of one segment in memory, read again further on when an entry needs it."""

    def __init__(self, segment: Source) -> None:
        self._segment = segment
        self._start = segment.base
        self._content = bytearray()
        self._bytes = memoryview(b"")

    def find(self, needle: bytes, position: int) -> int | None:
        """Find bytes at or behind a position of the segment."""
        while position < self._segment.end:
            self.at(position, len(needle))
            found = self._content.find(needle, position - self._start)
            if found >= 0:
                return self._start + found
            # The needle may lie across the border to the next stretch.
            position = max(self._start + len(self._bytes) - len(needle) + 1, position + 1)
        return None

    def at(self, position: int, size: int) -> memoryview:
        """Give the bytes from a position on: at least ``size``, unless the segment ends."""
        size = max(min(size, self._segment.end - position), 0)
        offset = position - self._start
        if offset < 0 or offset + size > len(self._bytes):
            self._load(position, size)
            offset = 0
        return self._bytes[offset:]

    def _load(self, position: int, size: int) -> None:
        wanted = min(max(size, _WINDOW), self._segment.end - position)
        content = self._segment.read(position, wanted)
        self._start, self._content, self._bytes = position, content, memoryview(content)


def entry_at(window: Window, position: int) -> tuple[Entry, memoryview] | None:
    """Give the intact entry that begins at a position, with its payload; None if none does."""
    header = parse_header(window.at(position, HEADER_SIZE), 0, position)
    if header is None:
        return None
    # The size comes from the disk: the window never reads beyond the segment for it.
    whole = window.at(position, HEADER_SIZE + header.payload_size)
    if not is_intact(header, whole, 0):
        return None
    return header, whole[HEADER_SIZE : HEADER_SIZE + header.payload_size]


def scan(log: CommitLog, position: int) -> Iterator[tuple[Entry, memoryview]]:
    """Give intact entries from a position on, with their payloads; stop at the first bad one."""
    for segment in log.segments:
        if segment.end <= position:
            continue
        window = Window(segment)
        while position < segment.end:
            found = entry_at(window, position)
            if found is None:
                return
            yield found
            position = found[0].end


def witness_behind(log: CommitLog, damaged: int) -> Entry | None:
    """Find an entry that proves that the bytes at a damaged position were once on disk."""
    position = damaged + 1
    for segment in log.segments:
        if segment.end <= position:
            continue
        window = Window(segment)
        position = max(position, segment.base)
        while (found := window.find(MAGIC, position)) is not None:
            candidate = entry_at(window, found)
            if candidate is not None and candidate[0].synced > damaged:
                return candidate[0]
            position = candidate[0].end if candidate else found + 1
    return None
