"""Following a path: through its file, its rotations, and what comes after them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connect.connectors.file._identity import Place, history, locate
from headrace.connect.connectors.file._reader import Chunk, FileReader, Limits, ReplacedError

if TYPE_CHECKING:
    from headrace.connect.connectors.file._lines import LineFormat

__all__ = ["Follower"]

#: Seconds of silence after which a removed file is let go, so that its bytes leave the disk.
_ABANDONED = 60.0


class Follower:
    """Gives the lines that are written to a path, each once, whatever file is behind it.

    A file that was renamed is read to its end before the one that took its name.  A file that was
    copied and cut off goes on in the copy.

    Parameters
    ----------
    path
        What is followed.
    place
        Where to go on; ``None`` for a path that was never read.
    past
        Whether the rotated pasts of a path that was never read are read first.
    patience
        Seconds without a write after which a rotated file has ended.
    """

    def __init__(
        self,
        path: Path,
        place: Place | None,
        lines: LineFormat,
        limits: Limits,
        *,
        past: bool = False,
        patience: float = 1.0,
        logger: logging.Logger | None = None,
    ) -> None:
        self.path = path
        self._place = place
        self._past = past
        self._lines = lines
        self._limits = limits
        self._patience = patience
        self._logger = logger or logging.getLogger(__name__)
        self._reader: FileReader | None = None

    @property
    def is_open(self) -> bool:
        """Whether the follower holds a file open."""
        return self._reader is not None

    @property
    def is_abandoned(self) -> bool:
        """Whether the file was removed, and nobody has written to it for a while."""
        reader = self._reader
        return reader is not None and not self.path.exists() and reader.quiet(_ABANDONED)

    def read(self) -> Chunk | None:
        """Give the next whole lines, or ``None`` when there are none now."""
        reader = self._reader or self._opened()
        if reader is None:
            return None
        try:
            chunk = reader.read() or self._end_of_past(reader)
        except ReplacedError:
            self._logger.info("%s was cut off or written anew", reader.path)
            self.let_go()
            return None
        if chunk is not None:
            self._place = chunk.place
        return chunk

    def let_go(self) -> None:
        """Close the file; the next :meth:`read` finds it again."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _opened(self) -> FileReader | None:
        found = self._first() if self._place is None else self._found(self._place)
        if found is None:
            return None
        path, place = found
        try:
            self._reader = FileReader(path, place, self._lines, self._limits)
        except FileNotFoundError:  # rotated away at this moment
            return None
        return self._reader

    def _first(self) -> tuple[Path, Place] | None:
        files = history(self.path) if self._past else [self.path]
        return (files[0], Place(0)) if files and files[0].exists() else None

    def _found(self, place: Place) -> tuple[Path, Place] | None:
        files = history(self.path)
        if place.inode is None:
            files = files[-1:]
        if path := locate(files, place):
            return path, place
        if not self.path.exists():
            return None
        if place.position:
            self._logger.warning(
                "%s: byte %d, where its reading stood, is in no file of that name any more: "
                "it was rotated out of reach or cut off; reading goes on at its start",
                self.path,
                place.position,
            )
        return self.path, Place(0)

    def _end_of_past(self, reader: FileReader) -> Chunk | None:
        """Go on from a file that has been rotated, once nobody writes to it."""
        following = self._after(reader)
        if following is None or not reader.quiet(self._patience):
            return None
        if chunk := reader.read() or reader.rest():
            return chunk
        self.let_go()
        try:
            self._reader = FileReader(following, Place(0), self._lines, self._limits)
        except FileNotFoundError:  # rotated on at this moment: the next read looks again
            return None
        self._place = self._reader.place()
        return self._reader.read()

    def _after(self, reader: FileReader) -> Path | None:
        inode = reader.inode
        try:
            if self.path.stat().st_ino == inode:
                return None
            files = history(self.path)
            inodes = [one.stat().st_ino for one in files]
        except FileNotFoundError:  # being rotated at this moment: the next read looks again
            return None
        place = inodes.index(inode) if inode in inodes else len(files) - 2
        return files[place + 1]
