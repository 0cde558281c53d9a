"""The clock of a store: wall time for people, elapsed time for promises."""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path
from typing import Self

from headrace.store.fileops import FileOps, replace_file

__all__ = ["StoreClock"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Boot, milliseconds since boot and elapsed time when it was saved.
_SAVED = struct.Struct("<36sqq")
_CRC = struct.Struct("<I")


class StoreClock:
    """Wall time, and an age of the store that no jump of the wall clock changes.

    The age counts the time that the machine was up while the store existed.  What a crash of the
    machine takes from it makes promises last longer, never shorter.

    Parameters
    ----------
    elapsed
        The age to begin with, ms.

    Examples
    --------
    >>> clock = StoreClock(elapsed=1000)
    >>> clock.elapsed() >= 1000
    True
    """

    def __init__(self, elapsed: int = 0) -> None:
        self._begin = _since_boot() - elapsed

    @classmethod
    def open(cls, path: Path) -> Self:
        """Go on from what :meth:`save` wrote; an unreadable file counts as none."""
        try:
            content = path.read_bytes()
        except OSError:
            return cls()
        if len(content) != _SAVED.size + _CRC.size:
            return cls()
        saved = content[: _SAVED.size]
        if _CRC.unpack_from(content, _SAVED.size) != (zlib.crc32(saved),):
            return cls()
        boot, then, elapsed = _SAVED.unpack(saved)
        # Within one boot the time in which the store was closed counts, too.
        since = _since_boot() - then if boot == _boot() else 0
        return cls(elapsed + max(since, 0))

    def save(self, path: Path, ops: FileOps) -> None:
        """Keep the age for the next start; a file that is too old is only more careful."""
        saved = _SAVED.pack(_boot(), _since_boot(), self.elapsed())
        replace_file(ops, path, saved + _CRC.pack(zlib.crc32(saved)))

    def now(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def elapsed(self) -> int:
        """Age of the store, ms: jumps of the wall clock do not change it."""
        return _since_boot() - self._begin


def _since_boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _boot() -> bytes:
    try:
        return _BOOT_ID.read_bytes()[:36].ljust(36)
    except OSError:
        return bytes(36)
