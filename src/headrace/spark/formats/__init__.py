"""Batches of Connect's tasks whose rows Spark itself reads or writes: see decision 0015."""

from __future__ import annotations

from headrace.spark.formats.reading import SparkReads
from headrace.spark.formats.writing import SparkWrites

__all__ = ["SparkReads", "SparkWrites"]
