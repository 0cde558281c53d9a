"""Columns: expressions that run on Arrow data, with no Python per record.

Where a stream's values have a schema, ``select``, ``where`` and ``group_by`` take expressions::

    from headrace import count, sum_
    from headrace.columns import col

    orders.where(col("price") > 100).group_by("city").agg(count(), sum_("price"))
"""

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
    "Schema",
    "coalesce",
    "col",
    "concat",
    "explode",
    "if_else",
    "lit",
]
