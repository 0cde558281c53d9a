"""Committed batches, handed to users' functions and to Spark's own writers after the commit."""

from __future__ import annotations

from headrace.spark.batches.failures import BatchSinkStatistics
from headrace.spark.batches.runner import BatchSinks

__all__ = ["BatchSinkStatistics", "BatchSinks"]
