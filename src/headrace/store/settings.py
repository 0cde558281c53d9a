"""Settings of a message store."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from headrace.errors import SettingsError
from headrace.store.compaction.compactor import CompactionSettings

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How a store writes and when it syncs.

    Raises
    ------
    SettingsError
        When a value cannot work.

    Examples
    --------
    >>> StoreSettings(flush="async").flush_interval
    datetime.timedelta(microseconds=500000)
    """

    #: A segment of the log takes no further entry beyond this size, bytes.
    segment_size: int = 256 * _MIB
    #: ``"sync"``: on disk before an append is answered; ``"async"``: within ``flush_interval``.
    flush: Literal["sync", "async"] = "sync"
    #: Longest time that an answered append stays unsynced with ``flush="async"``.
    flush_interval: timedelta = timedelta(milliseconds=500)
    #: Largest body of one message, bytes; a stored record may exceed it by its envelope.
    max_message_size: int = 4 * _MIB
    #: Appends are refused when less than this stays free on the disk, bytes.
    min_free_space: int = 64 * _MIB
    #: Longest time between two checkpoints while there is something to save.
    checkpoint_interval: timedelta = timedelta(seconds=5)
    #: Log bytes after which a checkpoint is due early: bounds the work of recovery.
    checkpoint_bytes: int = 128 * _MIB
    #: Messages older than this are deleted, a whole segment at a time; None keeps them.
    retention: timedelta | None = timedelta(hours=72)
    #: The oldest segments are deleted while the log has more bytes than this; None is no limit.
    retention_bytes: int | None = None
    #: They are also deleted, before their time, while more than this share of the disk is used.
    disk_watermark: float = 0.9
    #: How often to look for what is to be deleted.
    maintenance_interval: timedelta = timedelta(seconds=10)
    #: How compacted topics are kept.
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    #: Units in one index file.
    index_file_units: int = 65_536
    #: Units of more bytes are written beside the log, and appends go on meanwhile.
    large_unit: int = 16 * _MIB
    #: Test only.  False writes units without begin and end marks and keeps partial ones at
    #: recovery, so that a kill test can be shown to fail.
    unit_marks: bool = True

    def __post_init__(self) -> None:
        for name in (
            "segment_size",
            "max_message_size",
            "checkpoint_bytes",
            "index_file_units",
            "large_unit",
        ):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}, must be at least 1")
        if self.min_free_space < 0:
            raise SettingsError(f"min_free_space is {self.min_free_space}, must not be negative")
        if self.retention_bytes is not None and self.retention_bytes < 0:
            raise SettingsError(
                f"retention_bytes is {self.retention_bytes}, must not be negative",
                hint="None is no limit",
            )
        if not 0 < self.disk_watermark <= 1:
            raise SettingsError(
                f"disk_watermark is {self.disk_watermark}, must be above 0 and at most 1",
                hint="0.9 deletes the oldest messages when 90 % of the disk are used, 1 never",
            )
        if self.flush not in ("sync", "async"):
            raise SettingsError(f"flush is {self.flush!r}, must be 'sync' or 'async'")
        for name in ("flush_interval", "checkpoint_interval", "maintenance_interval", "retention"):
            value = getattr(self, name)
            if value is not None and value <= timedelta(0):
                raise SettingsError(f"{name} is {getattr(self, name)}, must be positive")
