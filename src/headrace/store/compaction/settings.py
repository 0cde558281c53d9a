"""Settings of compaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from headrace.errors import SettingsError

__all__ = ["CompactionSettings"]

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
