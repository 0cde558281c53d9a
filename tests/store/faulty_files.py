"""File operations that fail, stop, or remember: the disk as tests need it."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from headrace.store import FileOps
from headrace.store.fileops import Buffer
from tests.store.samples import FaultyOps

__all__ = ["FailingAt", "FailingReads", "Killed", "KilledAt"]


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


class FailingAt(FaultyOps):
    """The N-th operation of a kind fails, once or from then on; syncs take no time.

    Operations are counted from when it is armed.
    """

    def __init__(
        self, name: str, at: int, code: int, *, for_good: bool, partial: bool = False
    ) -> None:
        super().__init__()
        self.armed = False
        #: Kinds of operations that have failed.
        self.failed: set[str] = set()
        #: Another kind and number that fails once.
        self.also: tuple[str, int] | None = None
        self._name, self._at, self._code = name, at, code
        self._for_good = for_good
        self._partial = partial
        self._counts: Counter[str] = Counter()
        self.plan = self._verdict

    def _verdict(self, name: str, _number: int) -> int:
        if not self.armed:
            return 0
        self._counts[name] += 1
        number = self._counts[name]
        hit = name == self._name and (number == self._at or (self._for_good and number > self._at))
        if hit or (name, number) == self.also:
            self.failed.add(name)
            return self._code
        return 0

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        try:
            return super().pwritev(fd, buffers, offset)
        except OSError:
            if self._partial:
                whole = b"".join(buffers)
                os.pwrite(fd, whole[: len(whole) // 2], offset)
            raise

    def fdatasync(self, fd: int) -> None:
        self._ask("sync")

    def sync_directory(self, path: Path) -> None:
        self._ask("sync_directory")
