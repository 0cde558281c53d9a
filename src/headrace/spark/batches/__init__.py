"""Committed batches, handed to users' functions and to Spark's own writers after the commit."""

from __future__ import annotations

from headrace.spark.batches.sinks import BatchSinks
from headrace.spark.batches.status import BatchSinkStatistics

__all__ = ["BatchSinkStatistics", "BatchSinks"]
