"""Verification: no byte is served that was not once checked since the store was opened.

What this process wrote, and what recovery read, is known to be good.  Older entries are checked
when a reader first comes to them; a reader that goes on in order pays for each entry once.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from pathlib import Path
from typing import Protocol

from headrace.errors import CorruptLogError
from headrace.store.entries import HEADER_SIZE, MAGIC, Entry, is_intact, parse_header

__all__ = ["CheckedFile", "CheckedLog", "Verification"]

#: A reader that skips at most so many bytes has them checked too: one range instead of many.
_BRIDGE = 1024 * 1024


class CheckedFile(Protocol):
    """A file of entries."""

    path: Path

    @property
    def base(self) -> int:
        """Position of the first byte."""

    @property
    def end(self) -> int:
        """One past the position of the last byte."""

    def view(self, start: int, end: int) -> memoryview:
        """Give the bytes between two positions."""


class CheckedLog(Protocol):
    """Finds the file that holds a position."""

    def segment_at(self, position: int, /) -> CheckedFile:
        """Find the file of a position."""


class Verification:
    """Knows which ranges of the log are good, and checks the others on demand."""

    def __init__(self, log: CheckedLog, good_from: int) -> None:
        self._log = log
        #: Everything from here on was checked by recovery or written by this process.
        self._good_from = good_from
        self._lock = threading.Lock()
        #: Disjoint ranges of whole entries, in order: firsts and lasts.
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def check(self, first: int, last: int) -> None:
        """Make sure that a range inside one segment is good.

        Raises
        ------
        CorruptLogError
            When an entry in it does not match its checksum; the others stay readable.
        """
        if first >= self._good_from:
            return
        with self._lock:
            at = bisect_right(self._firsts, first) - 1
            if at >= 0 and last <= self._lasts[at]:
                return
            self._extend(first, last, at)

    def _extend(self, first: int, last: int, at: int) -> None:
        """Check the entries that cover a range, and remember them."""
        segment = self._log.segment_at(first)
        near = at >= 0 and max(first - _BRIDGE, segment.base) <= self._lasts[at]
        position = self._lasts[at] if near else self._entry_before(segment, first)
        if near:
            try:
                self._lasts[at] = self._walk(segment, position, last)
                return
            except CorruptLogError:
                # The damage may lie in what was skipped: look at the wanted entries alone.
                position = self._entry_before(segment, first)
        end = self._walk(segment, position, last)
        self._firsts.insert(at + 1, position)
        self._lasts.insert(at + 1, end)

    def _walk(self, segment: CheckedFile, position: int, last: int) -> int:
        view = segment.view(segment.base, segment.end)
        while position < last:
            offset = position - segment.base
            entry = parse_header(view, offset, position)
            if entry is None or not is_intact(entry, view, offset):
                raise _damage(segment, position)
            position = entry.end
        return position

    def _entry_before(self, segment: CheckedFile, position: int) -> int:
        """Find the entry that holds a position: its header is the last in front of it."""
        view = segment.view(segment.base, segment.end)
        stop, step = position - segment.base, 64 * 1024
        while stop > 0:
            start = max(stop - step, 0)
            stretch = bytes(view[start : min(stop + HEADER_SIZE, len(view))])
            found = stretch.rfind(MAGIC)
            while found >= 0:
                entry = parse_header(view, start + found, segment.base + start + found)
                if entry is not None and _covers(entry, position):
                    return entry.position
                if entry is not None and is_intact(entry, view, start + found):
                    # The header behind it is the damaged one.
                    raise _damage(segment, entry.end)
                found = stretch.rfind(MAGIC, 0, found)
            stop, step = start, step * 4
        raise _damage(segment, position)


def _covers(entry: Entry, position: int) -> bool:
    return entry.payload_position <= position < entry.end


def _damage(segment: CheckedFile, position: int) -> CorruptLogError:
    return CorruptLogError(
        f"{segment.path}: the entry at byte {position - segment.base} (position {position} of "
        f"the log) does not match its checksum",
        hint="other messages stay readable; put the file back from a copy to get this one",
    )
