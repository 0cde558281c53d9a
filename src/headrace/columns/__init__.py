"""Columns: expressions and aggregates that run on Arrow data, with no Python per record.

Where a stream's values have a schema, ``select``, ``where`` and ``group_by`` take expressions::

    from headrace.columns import col, count, sum

    orders.where(col("price") > 100).group_by("city").agg(count(), sum("price"))
"""

from __future__ import annotations

from headrace.columns.aggregates import Measure, avg, count, max, min, sum  # noqa: A004
from headrace.columns.expressions import (
    Expression,
    coalesce,
    col,
    concat,
    explode,
    if_else,
    lit,
)
from headrace.columns.schema import Schema
from headrace.columns.values import ColumnValues

__all__ = [
    "ColumnValues",
    "Expression",
    "Measure",
    "Schema",
    "avg",
    "coalesce",
    "col",
    "concat",
    "count",
    "explode",
    "if_else",
    "lit",
    "max",
    "min",
    "sum",
]
