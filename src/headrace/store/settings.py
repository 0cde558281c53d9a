"""Settings of a message store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from headrace._setting import SHORTEST, DeclaredSettings, setting
from headrace.store.compaction.compactor import CompactionSettings

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepingSettings(DeclaredSettings):
    """How messages are written and kept: the same for a store and for the broker that has it."""

    VARIABLES = ""

    segment_size: int = setting(
        256 * _MIB,
        doc="A file of the commit log takes no further entry beyond this size.",
        unit="bytes",
        minimum=1,
    )
    flush: Literal["sync", "async"] = setting(
        "sync",
        doc="When an answer means that a message is on disk: at once, or within flush_interval.",
    )
    flush_interval: timedelta = setting(
        timedelta(milliseconds=500),
        doc="Longest time that an answered message may be off disk when flush is async.",
        minimum=SHORTEST,
    )
    max_message_size: int = setting(
        4 * _MIB, doc="Largest message, and largest batch of messages.", unit="bytes", minimum=1
    )
    min_free_space: int = setting(
        64 * _MIB, doc="Nothing more is written when less than this is free.", unit="bytes"
    )
    retention: timedelta | None = setting(
        timedelta(hours=72),
        doc="Older messages are deleted, a file of the commit log at a time.",
        unit="duration or `forever`",
        minimum=SHORTEST,
        nothing="forever",
    )
    retention_size: int | None = setting(
        None,
        doc="The oldest files go while the commit log has more bytes than this, such as 100GiB.",
        unit="bytes",
    )
    disk_watermark: float = setting(
        0.9,
        doc="The oldest files go, before their time, while more than this share of the disk is used; "
        "1: never.",
        minimum=0.01,
        maximum=1,
    )
    compaction: CompactionSettings = setting(
        make=CompactionSettings,
        doc="How topics that keep the newest message of each key are kept.",
        shown="each has its own",
        unit="NAME=VALUE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings(KeepingSettings):
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

    checkpoint_interval: timedelta = setting(
        timedelta(seconds=5),
        doc="Longest time between two checkpoints while there is something to save.",
        minimum=SHORTEST,
    )
    checkpoint_bytes: int = setting(
        128 * _MIB,
        doc="Log bytes after which a checkpoint is due early: bounds the work of recovery.",
        unit="bytes",
        minimum=1,
    )
    maintenance_interval: timedelta = setting(
        timedelta(seconds=10),
        doc="How often to look for what is to be deleted.",
        minimum=SHORTEST,
    )
    index_file_units: int = setting(65_536, doc="Units in one index file.", minimum=1)
    large_unit: int = setting(
        16 * _MIB,
        doc="Units of more bytes are written beside the log, and appends go on meanwhile.",
        unit="bytes",
        minimum=1,
    )
    #: Test only.  False writes units without begin and end marks and keeps partial ones at
    #: recovery, so that a kill test can be shown to fail.
    unit_marks: bool = True
