"""File operations that fail, stop, or remember: the disk as tests need it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from headrace.store import FileOps
from headrace.store.fileops import Buffer

__all__ = ["FailingReads", "Killed", "KilledAt"]


class Killed(BaseException):
    """The process would be gone: no code of ours runs behind it."""


class KilledAt(FileOps):
    """Ends everything before the N-th operation that changes something.

    What comes later (an ``except`` or a ``finally``) changes nothing any more.  A write that is
    the N-th is done in half first.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.done = 0

    def _step(self) -> None:
        self.done += 1
        if self.done >= self.at:
            raise Killed

    def open(self, path: Path, flags: int) -> int:
        if flags:
            self._step()
        return super().open(path, flags)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        try:
            self._step()
        except Killed:
            if self.done == self.at:
                whole = b"".join(buffers)
                super().pwritev(fd, [whole[: len(whole) // 2]], offset)
            raise
        return super().pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self._step()

    def truncate(self, fd: int, size: int) -> None:
        self._step()
        super().truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._step()
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._step()

    def mkdir(self, path: Path) -> None:
        self._step()
        super().mkdir(path)

    def remove_tree(self, path: Path) -> None:
        self._step()
        super().remove_tree(path)


class FailingReads(FileOps):
    """A disk on which the log cannot be read."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
