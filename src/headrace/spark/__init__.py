"""Run topologies on Spark Structured Streaming."""

from __future__ import annotations

from headrace.runtime.standing import OperatorStatistics
from headrace.spark.batches import BatchSinkStatistics
from headrace.spark.job import StreamJob
from headrace.spark.replay import SparkReplay, assert_same_on_spark
from headrace.spark.rocketmq import register
from headrace.spark.statistics import JobStatistics
from headrace.spark.transactions import TransactionJob

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
