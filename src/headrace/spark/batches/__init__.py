"""Sinks that get committed batches: users' functions, and Spark's own writers."""

from __future__ import annotations

from headrace.spark.batches.failures import BatchSinkStatistics
from headrace.spark.batches.runner import BatchSinks

__all__ = ["BatchSinkStatistics", "BatchSinks"]
