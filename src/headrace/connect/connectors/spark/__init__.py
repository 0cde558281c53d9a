"""Any format of Spark, by its name: the engine's Spark moves the rows, and tasks say which."""

from __future__ import annotations

from headrace.connect.connectors.spark.sink import SparkSinkConnector, SparkSinkTask
from headrace.connect.connectors.spark.source import SparkSourceConnector, SparkSourceTask

__all__ = ["SparkSinkConnector", "SparkSinkTask", "SparkSourceConnector", "SparkSourceTask"]
