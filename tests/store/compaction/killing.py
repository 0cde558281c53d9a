"""File operations that end the process, as it were, before one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from headrace.store.fileops import Buffer, FileOps

_Result = TypeVar("_Result")


class Killed(BaseException):
    """The process is gone: nothing cleans up behind it."""


class KillingOps(FileOps):
    """Counts operations that change something; from the chosen one on, all of them kill.

    A write that kills writes a half of its bytes first.
    """

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []
        #: Operation before which the process ends; None: never.
        self.kill_at: int | None = None

    def arm(self, kill_at: int | None) -> None:
        self.count = 0
        self.names = []
        self.kill_at = kill_at

    def _do(self, name: str, operation: Callable[[], _Result]) -> _Result:
        self.count += 1
        self.names.append(name)
        if self.kill_at is not None and self.count >= self.kill_at:
            raise Killed(name)
        return operation()

    def open(self, path: Path, flags: int) -> int:
        return self._do(f"open {path.name}", lambda: super(KillingOps, self).open(path, flags))

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.kill_at is not None and self.count + 1 == self.kill_at:
            whole = b"".join(buffers)
            super().pwritev(fd, [whole[: len(whole) // 2]], offset)
        return self._do("write", lambda: super(KillingOps, self).pwritev(fd, buffers, offset))

    def fdatasync(self, fd: int) -> None:
        self._do("sync", lambda: None)

    def rename(self, source: Path, target: Path) -> None:
        self._do(f"rename to {target.name}", lambda: super(KillingOps, self).rename(source, target))

    def unlink(self, path: Path) -> None:
        self._do(f"unlink {path.name}", lambda: super(KillingOps, self).unlink(path))

    def truncate(self, fd: int, size: int) -> None:
        self._do("truncate", lambda: super(KillingOps, self).truncate(fd, size))

    def sync_directory(self, path: Path) -> None:
        self._do("sync directory", lambda: None)
