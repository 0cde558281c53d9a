"""One open file that grows: what was appended, and whether it is still the same file."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connect.connectors.file._identity import Place, Proof, has_proof
from headrace.errors import DeserializationError

if TYPE_CHECKING:
    from headrace.connect.connectors.file._lines import LineFormat

__all__ = ["Chunk", "FileReader", "Limits", "ReplacedError"]


class ReplacedError(Exception):
    """The file no longer goes on from where the reader stands."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is read at once."""

    #: Bytes of one read.
    chunk: int
    #: Lines of one read; ``None``: as many as the bytes hold.
    rows: int | None
    #: Bytes of the longest line.
    line: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of a file, and where they stand."""

    file: Path
    start: int
    content: bytes
    place: Place


class FileReader:
    """Reads what is appended to one file.

    Parameters
    ----------
    path
        Where the file is now.
    place
        Where to go on; what stands before it has been proven.
    """

    def __init__(self, path: Path, place: Place, lines: LineFormat, limits: Limits) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._position = place.position
        self._proof = Proof.read(self._file, place.position)
        self._lines = lines
        self._limits = limits
        self._seen: tuple[int, int] | None = None

    @property
    def inode(self) -> int:
        """The file's number on its disk."""
        return os.fstat(self._file).st_ino

    def place(self) -> Place:
        """Tell where the reader stands."""
        return Place(self._position, self.inode, self._proof.digest())

    def read(self) -> Chunk | None:
        """Give the whole lines that were appended, or ``None``; a torn last line waits.

        Raises
        ------
        ReplacedError
            When the file was cut off or written anew.
        """
        state = os.fstat(self._file)
        seen = (state.st_size, state.st_mtime_ns)
        if seen == self._seen:
            return None
        data = self._read()
        end = self._lines.end(data, self._limits.rows)
        if end < len(data) or not data:
            # What is left is torn, or waits for the next call.
            self._seen = None if end else seen
        return self._taken(data[:end]) if end else None

    def rest(self) -> Chunk | None:
        """Give a last line that lacks its end; Caller: whoever knows that nobody writes on."""
        data = self._read()
        return self._taken(data) if data else None

    def quiet(self, seconds: float) -> bool:
        """Whether nobody has written to the file for some time."""
        return time.time() - os.fstat(self._file).st_mtime >= seconds

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self) -> bytes:
        size = self._limits.chunk
        while True:
            data = os.pread(self._file, size, self._position)
            # After the read: a file that was cut off before it, or during it, does not pass.
            if not has_proof(self._file, Place(self._position, proof=self._proof.digest())):
                raise ReplacedError
            if len(data) < size or self._lines.end(data):
                return data
            if size >= self._limits.line:
                raise self._too_long()
            size = min(size * 4, self._limits.line)

    def _taken(self, content: bytes) -> Chunk:
        start = self._position
        self._position += len(content)
        self._proof.add(content)
        return Chunk(self.path, start, content, self.place())

    def _too_long(self) -> DeserializationError:
        message = (
            f"{self.path}: the line at position {self._position} is longer than "
            f"line.max.bytes={self._limits.line}."
        )
        hint = "Set line.max.bytes higher, or move the connector's position behind the line."
        return DeserializationError(message, hint=hint)
