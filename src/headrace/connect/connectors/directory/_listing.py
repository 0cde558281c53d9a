"""Which files of a folder are ready, and which of them were read before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Found", "Standing", "ready_files"]

_UNFINISHED = (".tmp", ".part", ".partial", ".inprogress", ".crc", ".swp")


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is ready."""

    #: Its path below the folder.
    name: str
    path: Path
    size: int
    #: When it was written last, in nanoseconds since 1970.
    modified: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a file has been read."""

    row: int
    size: int | None = None
    modified: int | None = None
    done: bool = False

    @classmethod
    def of(cls, offset: Mapping[str, Any] | None) -> Standing:
        """Read it out of a committed offset."""
        if offset is None:
            return cls(0)
        row = int(offset.get("row", 0))
        return cls(row, offset.get("size"), offset.get("modified"), bool(offset.get("done")))

    def offset(self) -> dict[str, Any]:
        """Write it as an offset that is committed."""
        return {
            "row": self.row,
            "size": self.size,
            "modified": self.modified,
            "done": self.done,
        }

    def places(self, rows: int) -> list[dict[str, Any]]:
        """Write an offset for each of the last rows."""
        last = self.offset()
        first = self.row - rows + 1
        return [{**last, "row": row, "done": False} for row in range(first, self.row)] + [last]

    def is_of(self, found: Found) -> bool:
        """Whether the file is as it was; a position set by hand fits every file."""
        return self.size is None or (self.size, self.modified) == (found.size, found.modified)

    def goes_on(self, found: Found, *, appendable: bool) -> int | None:
        """Give the row at which to go on in a file; ``None`` when all of it has been read.

        A file of lines that grew was appended to.  Any other change makes it a new file.
        """
        if self.is_of(found):
            return None if self.done else self.row
        grew = self.size is not None and found.size > self.size
        return self.row if grew and appendable else 0


def ready_files(folder: Path, pattern: str, settle: float) -> Iterator[Found]:
    """Give the files that match, in the order of their names.

    Files that were written less than ``settle`` seconds ago may not be finished; nor may those
    whose names begin with a dot or an underscore, or end as unfinished files do.
    """
    latest = time.time_ns() - int(settle * 1e9)
    for path in sorted(folder.glob(pattern)):
        name = path.relative_to(folder)
        if any(part[0] in "._" for part in name.parts) or path.name.endswith(_UNFINISHED):
            continue
        try:
            state = path.stat()
        except FileNotFoundError:  # moved away since it was listed
            continue
        if path.is_file() and state.st_mtime_ns <= latest:
            yield Found(name.as_posix(), path, state.st_size, state.st_mtime_ns)
