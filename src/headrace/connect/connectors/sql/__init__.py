"""What SQL sinks share: how records become rows, batches become statements, offsets are fenced."""

from __future__ import annotations

from headrace.connect.connectors.sql.keys import SINK_KEYS, sink_problems
from headrace.connect.connectors.sql.mapping import (
    COORDINATES,
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
    table_name,
)
from headrace.connect.connectors.sql.sink import (
    OffsetTable,
    SqlSinkTask,
    TableCache,
    alter_sink_offsets,
)

__all__ = [
    "COORDINATES",
    "SINK_KEYS",
    "Adapter",
    "Change",
    "SqlColumn",
    "TableLayout",
    "MappingOptions",
    "Mode",
    "OffsetTable",
    "RowMapper",
    "SqlDatabase",
    "SqlSinkTask",
    "WritableRows",
    "TableName",
    "TableCache",
    "Verdict",
    "alter_sink_offsets",
    "inferred_schema",
    "is_document",
    "plan",
    "sink_problems",
    "table_name",
]
