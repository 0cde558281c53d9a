"""Plugins: base classes of connectors and tasks, and how the runtime finds them."""

from __future__ import annotations

from headrace.connect.plugins.connectors import Connector, SinkConnector, SourceConnector
from headrace.connect.plugins.contexts import (
    ConnectorContext,
    OffsetReader,
    SinkTaskContext,
    SourceTaskContext,
)
from headrace.connect.plugins.tasks import SinkTask, SourceTask, Task
from headrace.errors import RetriableError

__all__ = [
    "Connector",
    "ConnectorContext",
    "OffsetReader",
    "RetriableError",
    "SinkConnector",
    "SinkTask",
    "SinkTaskContext",
    "SourceConnector",
    "SourceTask",
    "SourceTaskContext",
    "Task",
]
