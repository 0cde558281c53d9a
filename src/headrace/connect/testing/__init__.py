"""A test kit: connectors and tasks in this process, without Spark, broker or worker."""

from __future__ import annotations

from headrace.connect.testing.contexts import KitOffsets
from headrace.connect.testing.sinks import SinkTaskKit, SourceTaskKit

__all__ = ["KitOffsets", "SinkTaskKit", "SourceTaskKit"]
