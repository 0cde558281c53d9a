"""What SQL sinks share: how records become rows, batches become statements, offsets are fenced."""

from __future__ import annotations

from headrace.connect.connectors.sql.changes import Change, Mode, Step, plan
from headrace.connect.connectors.sql.database import Adapter, SqlDatabase, Verdict
from headrace.connect.connectors.sql.keys import SINK_KEYS, sink_problems
from headrace.connect.connectors.sql.layouts import (
    Column,
    Layout,
    TableName,
    inferred_schema,
    is_document,
    table_name,
)
from headrace.connect.connectors.sql.mapping import COORDINATES, MappingOptions, RowMapper
from headrace.connect.connectors.sql.offsets import OffsetTable, alter_sink_offsets
from headrace.connect.connectors.sql.sink import SqlSinkTask
from headrace.connect.connectors.sql.tables import Tables

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
