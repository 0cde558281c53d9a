"""What SQL sources and sinks share: keys, rows of records, statements of batches, offsets."""

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
from headrace.connect.connectors.sql.source import SOURCE_KEYS, source_problems

__all__ = [
    "COORDINATES",
    "SINK_KEYS",
    "SOURCE_KEYS",
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
    "source_problems",
    "table_name",
]
