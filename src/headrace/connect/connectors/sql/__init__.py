"""What SQL sinks share: how records become rows, batches become statements, offsets are fenced."""

from __future__ import annotations

from headrace.connect.connectors.sql.keys import SINK_KEYS, sink_problems
from headrace.connect.connectors.sql.mapping import (
    COORDINATES,
    Adapter,
    Change,
    Column,
    Layout,
    MappingOptions,
    Mode,
    RowMapper,
    SqlDatabase,
    Step,
    TableName,
    Verdict,
    inferred_schema,
    is_document,
    plan,
    table_name,
)
from headrace.connect.connectors.sql.sink import (
    OffsetTable,
    SqlSinkTask,
    Tables,
    alter_sink_offsets,
)

__all__ = [
    "COORDINATES",
    "SINK_KEYS",
    "Adapter",
    "Change",
    "Column",
    "Layout",
    "MappingOptions",
    "Mode",
    "OffsetTable",
    "RowMapper",
    "SqlDatabase",
    "SqlSinkTask",
    "Step",
    "TableName",
    "Tables",
    "Verdict",
    "alter_sink_offsets",
    "inferred_schema",
    "is_document",
    "plan",
    "sink_problems",
    "table_name",
]
