"""SQLite: tables as a source, and as a sink that keeps its offsets beside the rows."""

from __future__ import annotations

from headrace.connect.connectors.sqlite.sink import SqliteSinkConnector, SqliteSinkTask
from headrace.connect.connectors.sqlite.source import SqliteSourceConnector, SqliteSourceTask

__all__ = [
    "SqliteSinkConnector",
    "SqliteSinkTask",
    "SqliteSourceConnector",
    "SqliteSourceTask",
]
