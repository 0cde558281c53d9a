"""SQL over named streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.columns import Expression
from headrace.columns.sql import Query, parse
from headrace.errors import TopologyError

if TYPE_CHECKING:
    from headrace.streams.stream import Stream
    from headrace.topology import ErrorPolicy

__all__ = ["query"]


def query(
    text: str,
    streams: Mapping[str, Stream[Any, Any]],
    name: str | None,
    on_error: ErrorPolicy = "fail",
) -> Stream[Any, Any]:
    """Build what a select statement says; ``name`` is for the operator that makes the result.

    Raises
    ------
    TopologyError
        The statement cannot be read, or names no stream that is given.
    """
    statement = parse(text)
    stream = streams.get(statement.table)
    if stream is None:
        given = ", ".join(sorted(streams)) or "none"
        raise TopologyError(
            f"sql() reads from '{statement.table}', and the streams given are {given}",
            hint=f"name it: sql(text, {statement.table}=stream)",
        )
    if statement.where is not None:
        only = name if not statement.columns and not statement.keys else None
        stream = stream.where(Expression(statement.where), name=only, on_error=on_error)
    if statement.keys:
        return _grouped(statement, stream, name, on_error)
    if not statement.columns:
        return stream
    return stream.select(*_expressions(statement.columns), name=name, on_error=on_error)


def _grouped(
    statement: Query, stream: Stream[Any, Any], name: str | None, on_error: ErrorPolicy
) -> Stream[Any, Any]:
    groups = stream.group_by(*_expressions(statement.keys), on_error=on_error)
    results = groups.agg(*statement.measures, name=name, on_error=on_error).to_stream()
    if statement.having is not None:
        results = results.where(Expression(statement.having), on_error=on_error)
    return results.select(*_expressions(statement.columns), on_error=on_error)


def _expressions(columns: Any) -> list[Expression]:
    return [Expression(node, name) for name, node in columns]
