"""Run topologies on Spark Structured Streaming."""

from __future__ import annotations

from headrace.spark.job import StreamJob
from headrace.spark.rocketmq import register
from headrace.spark.statistics import JobStatistics

__all__ = ["JobStatistics", "StreamJob", "register"]
