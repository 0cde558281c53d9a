"""PostgreSQL: a sink that is exactly once, and a source by queries or by logical replication."""

from __future__ import annotations

from headrace.connect.connectors.postgres.database import PostgresSinkConnector, PostgresSinkTask
from headrace.connect.connectors.postgres.source import (
    PostgresSourceConnector,
    PostgresSourceTask,
)

__all__ = [
    "PostgresSinkConnector",
    "PostgresSinkTask",
    "PostgresSourceConnector",
    "PostgresSourceTask",
]
