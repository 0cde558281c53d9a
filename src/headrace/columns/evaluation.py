"""Expressions to columns."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.expressions import Call, Name, Node, Value
from headrace.columns.functions import FUNCTIONS
from headrace.columns.schema import WIDE, Schema

__all__ = ["Explosion", "evaluate", "exploded", "filtered", "types_of"]

_INT64 = range(-(1 << 63), 1 << 63)


class Explosion(Exception):  # noqa: N818 - caught where it is raised for
    """An ``explode`` stands where it cannot."""


def evaluate(node: Node, batch: pa.RecordBatch) -> pa.Array:
    """Compute an expression for every row.

    Raises
    ------
    pyarrow.ArrowException
        A value cannot be computed.
    KeyError
        A column is missing.

    Examples
    --------
    >>> from headrace.columns import col
    >>> batch = pa.RecordBatch.from_pydict({"x": [1, None, 3]})
    >>> evaluate((col("x") * 2 > 2).node, batch).to_pylist()
    [False, None, True]
    """
    found = _evaluate(node, batch)
    if isinstance(found, pa.Scalar):
        return pa.repeat(found, batch.num_rows)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _evaluate(node: Node, batch: pa.RecordBatch) -> Any:
    if isinstance(node, Name):
        return _column(node.name, batch)
    if isinstance(node, Value):
        return _scalar(node.value)
    function = FUNCTIONS.get(node.function)
    if function is None:
        message = "explode stands only at the top of one column of select"
        raise Explosion(message)
    arguments = [_evaluate(argument, batch) for argument in node.arguments]
    if arguments and all(isinstance(one, pa.Scalar) for one in arguments):
        # Nothing varies: compute once, in a column of one row.
        arguments[0] = pa.repeat(arguments[0], 1)
        return function(*arguments)[0]
    return function(*arguments)


def _scalar(value: Any) -> pa.Scalar:
    if type(value) is int and value not in _INT64:
        return pa.scalar(Decimal(value), WIDE)
    return pa.scalar(value)


def _column(name: str, batch: pa.RecordBatch) -> pa.Array:
    index = batch.schema.get_field_index(name)
    if index < 0:
        names = batch.schema.names
        close = difflib.get_close_matches(name, names, 1)
        message = f"there is no column '{name}'"
        message += f", did you mean '{close[0]}'?" if close else f"; there are {', '.join(names)}"
        raise KeyError(message)
    return batch.column(index)


def exploded(
    columns: Sequence[tuple[str, Node]], batch: pa.RecordBatch
) -> tuple[pa.RecordBatch, pa.Array | None]:
    """Compute columns; where one explodes, also give the row that each new row comes from."""
    names = [name for name, _ in columns]
    lists = [
        node.arguments[0] if isinstance(node, Call) and node.function == "explode" else None
        for _, node in columns
    ]
    places = [place for place, node in enumerate(lists) if node is not None]
    if not places:
        arrays = [evaluate(node, batch) for _, node in columns]
        return pa.RecordBatch.from_arrays(arrays, names), None
    if len(places) > 1:
        message = "only one column of a select can explode"
        raise Explosion(message)
    items = evaluate(lists[places[0]], batch)  # type: ignore[arg-type]
    rows = pc.list_parent_indices(items)
    arrays = [
        pc.list_flatten(items) if place in places else evaluate(node, batch).take(rows)
        for place, (_, node) in enumerate(columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, names), rows


def filtered(node: Node, batch: pa.RecordBatch) -> pa.Array:
    """Give the rows for which a condition is true, neither false nor null, by index."""
    kept = evaluate(node, batch)
    if not pa.types.is_boolean(kept.type):
        message = f"a condition gives true or false, and {node} gives {kept.type}"
        raise TypeError(message)
    return pc.indices_nonzero(pc.fill_null(kept, fill_value=False))


def types_of(columns: Mapping[str, Node], schema: Schema) -> Schema:
    """Find the types that expressions give, by computing them for no record."""
    batch, _ = exploded(list(columns.items()), schema.without_rows())
    return Schema(tuple(zip(batch.schema.names, batch.schema.types, strict=True)))
