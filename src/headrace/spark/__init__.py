"""Run topologies on Spark Structured Streaming."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.runtime.standing import OperatorStatistics
    from headrace.spark.batches import BatchSinkStatistics
    from headrace.spark.job import StreamJob
    from headrace.spark.rocketmq import register
    from headrace.spark.statistics import JobStatistics
    from headrace.spark.transactions import SparkReplay, TransactionJob, assert_same_on_spark

__all__ = [
    "BatchSinkStatistics",
    "JobStatistics",
    "OperatorStatistics",
    "SparkReplay",
    "StreamJob",
    "TransactionJob",
    "assert_same_on_spark",
    "register",
]

_HOMES = {
    "BatchSinkStatistics": "headrace.spark.batches",
    "JobStatistics": "headrace.spark.statistics",
    "OperatorStatistics": "headrace.runtime.standing",
    "SparkReplay": "headrace.spark.transactions",
    "StreamJob": "headrace.spark.job",
    "TransactionJob": "headrace.spark.transactions",
    "assert_same_on_spark": "headrace.spark.transactions",
    "register": "headrace.spark.rocketmq",
}


def __getattr__(name: str) -> Any:
    # Imported at first use: each of Spark's Python processes needs a part of this package, and
    # what it imports is what a job waits for at its start.
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'headrace.spark' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)
