"""The lock that keeps a second process out of a store's folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from headrace.errors import StoreLockedError

__all__ = ["FolderLock"]


class FolderLock:
    """A lock on a folder, held by this process until it is released or the process ends.

    Raises
    ------
    StoreLockedError
        When another process (or another store of this one) holds it; names its pid.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreLockedError(
                f"the store in {folder} is open in process {holder}",
                hint="stop that process, or use another data folder",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Let others in."""
        os.close(self._fd)
