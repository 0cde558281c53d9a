"""Compaction logs: the records of a compacted topic, queue by queue, the latest of each key."""

from headrace.store.compaction.compactor import CompactionSettings, StoreClock
from headrace.store.compaction.manifest import CompactionReport
from headrace.store.compaction.queue_log import QueueLog

__all__ = ["CompactionReport", "CompactionSettings", "QueueLog", "StoreClock"]
