"""Which files were read before, and how far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

_UNFINISHED = (".tmp", ".part", ".partial", ".inprogress", ".crc", ".swp")


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A file that is ready."""

    #: Its path below the folder, or its key.
    name: str
    size: int
    #: When it was written last, in nanoseconds since 1970.
    modified: int


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far a file has been read."""

    row: int
    size: int | None = None
    modified: int | None = None
    done: bool = False

    @classmethod
    def of(cls, offset: Mapping[str, Any] | None) -> FileProgress:
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

    def is_of(self, found: ReadyFile) -> bool:
        """Whether the file is as it was; a position set by hand fits every file."""
        return self.size is None or (self.size, self.modified) == (found.size, found.modified)

    def goes_on(self, found: ReadyFile, *, appendable: bool) -> int | None:
        """Return the row at which to go on in a file; ``None`` when all of it has been read.

        A file of lines that grew was appended to.  Any other change makes it a new file.
        """
        if self.is_of(found):
            return None if self.done else self.row
        grew = self.size is not None and found.size > self.size
        return self.row if grew and appendable else 0


def is_unfinished(name: str) -> bool:
    """Whether a name says that its file is not finished, or not meant for others.

    >>> [is_unfinished(name) for name in ("a/b.csv", "a/.b.csv", "_a/b.csv", "b.csv.tmp")]
    [False, True, True, True]
    """
    return name.endswith(_UNFINISHED) or any(part[0] in "._" for part in PurePosixPath(name).parts)
