"""What SQL sinks share: how records become rows, batches become statements, offsets are fenced."""

from __future__ import annotations

from headrace.connect.connectors.sql.mapping import (
    COORDINATES,
    SINK_KEYS,
    Adapter,
    Change,
    MappingOptions,
    Mode,
    RowMapper,
    SqlColumn,
    SqlDatabase,
    TableLayout,
    TableName,
    Verdict,
    WritableRows,
    inferred_schema,
    is_document,
    plan,
    sink_problems,
    table_name,
)
from headrace.connect.connectors.sql.sink import (
    OffsetTable,
    SqlSinkConnector,
    SqlSinkTask,
    TableCache,
)

__all__ = [
    "COORDINATES",
    "SINK_KEYS",
    "Adapter",
    "Change",
    "MappingOptions",
    "Mode",
    "OffsetTable",
    "RowMapper",
    "SqlColumn",
    "SqlDatabase",
    "SqlSinkConnector",
    "SqlSinkTask",
    "TableCache",
    "TableLayout",
    "TableName",
    "Verdict",
    "WritableRows",
    "inferred_schema",
    "is_document",
    "plan",
    "sink_problems",
    "table_name",
]
