"""The message store: one commit log, an index per queue, recovery, and units of staged records."""

from headrace.store.compaction.manifest import ReadStatus
from headrace.store.entries import QueueAppend, QueueKey
from headrace.store.fileops import FileOps
from headrace.store.reading import Bounds, Cut, ReadResult
from headrace.store.recovery import RecoveryReport
from headrace.store.requests import AppendResult, UnitResult
from headrace.store.settings import StoreSettings
from headrace.store.staging import StageKey, appends_in
from headrace.store.store import MessageStore, StoreStatistics

__all__ = [
    "AppendResult",
    "Bounds",
    "Cut",
    "FileOps",
    "MessageStore",
    "QueueAppend",
    "QueueKey",
    "ReadResult",
    "ReadStatus",
    "RecoveryReport",
    "StageKey",
    "StoreSettings",
    "StoreStatistics",
    "UnitResult",
    "appends_in",
]
