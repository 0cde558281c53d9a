"""Settings of compaction."""

from __future__ import annotations

import struct
import time
import zlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

from headrace.errors import SettingsError
from headrace.store.fileops import FileOps, replace_file

# The clock of a store: wall time for people, elapsed time for promises.

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


_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """How the logs of compacted topics are kept.

    Raises
    ------
    SettingsError
        When a value cannot work.

    Examples
    --------
    >>> CompactionSettings().tombstone_retention
    datetime.timedelta(days=1)
    """

    #: A file is closed before it grows beyond this size, bytes; a larger record has its own.
    file_size: int = 128 * _MIB
    #: How long a delete stays readable after the first compaction that met it.  Zero: that
    #: compaction removes it, as RocketMQ does.
    tombstone_retention: timedelta = timedelta(hours=24)
    #: A queue is due when this share of its closed bytes has not been compacted yet.
    dirty_ratio: float = 0.5
    #: Files with younger records are left alone.
    min_lag: timedelta = timedelta(0)
    #: A queue is due when it has an uncompacted closed record of this age; None: never by age.
    max_lag: timedelta | None = None
    #: Hard bound on the memory of one offset map, bytes.
    map_bytes: int = 64 * _MIB
    #: Queues that are compacted at the same time.
    threads: int = 1
    #: Bytes that one compaction reads and writes per second at most; None: no bound.
    bytes_per_second: int | None = None
    #: How keys are told apart: ``"blake2b"`` is keyed with a secret of the store, so that nobody
    #: can choose keys that collide; ``"md5"`` is RocketMQ's.
    digest: Literal["blake2b", "md5"] = "blake2b"

    def __post_init__(self) -> None:
        for name in ("file_size", "map_bytes", "threads"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.bytes_per_second is not None and self.bytes_per_second < 1:
            raise SettingsError(
                f"bytes_per_second is {self.bytes_per_second}, must be at least 1",
                hint="None sets no bound",
            )
        if not 0 <= self.dirty_ratio <= 1:
            raise SettingsError(f"dirty_ratio is {self.dirty_ratio}, must be from 0 to 1")
        for name in ("tombstone_retention", "min_lag", "max_lag"):
            value = getattr(self, name)
            if value is not None and value < timedelta(0):
                raise SettingsError(f"{name} is {value}, must not be negative")
        if self.digest not in ("blake2b", "md5"):
            raise SettingsError(f"digest is {self.digest!r}, must be 'blake2b' or 'md5'")
