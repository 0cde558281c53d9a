"""Joins of tables by a key that the rows of one hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from headrace import serdes
from headrace.serdes.inference import result_hint
from headrace.streams.joins.chain import check_key_types
from headrace.streams.sources import check_function
from headrace.streams.tables import KEPT, Table, kept_table, nullable_known
from headrace.topology import ForeignKeyJoin, ForeignKeyRequests
from headrace.topology.callers import caller

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.streams.sources import Flow
    from headrace.topology import ErrorPolicy


def foreign_key_join(
    kind: Literal["inner", "left"],
    left: Flow,
    right: Flow,
    joiner: tuple[Callable[..., Any], bool],
    foreign_key: Callable[[Any], Any],
    name: str | None,
    serde: Serde[Any] | None,
    on_error: ErrorPolicy,
) -> Table[Any, Any]:
    """Add requests to the key that each row refers to, the join there, and the table of results."""
    made_by = caller()
    check_function("join", foreign_key, ("value",), made_by.origin)
    step = left.begin("foreign_key", name and f"{name}-requests", made_by, on_error=on_error)
    rows = left.value.needed_serde(step.name, KEPT)
    refers = step.known(result_hint(foreign_key, made_by.names))
    refers.check_key(step.name)
    requests = step.add(
        ForeignKeyRequests(
            **step.fields, key_serde=serdes.key, value_serde=rows, selector=foreign_key
        ),
        key=refers,
    )
    check_key_types(requests, right, made_by.origin)
    step = requests.begin("join", name and f"{name}-rows", made_by, on_error=on_error)
    known = nullable_known(step.known(result_hint(joiner[0], made_by.names), serde))
    joined = step.add(
        ForeignKeyJoin(
            **{**step.fields, "parents": (requests.operator, right.operator)},
            key_serde=serdes.key,
            left_serde=serdes.plain,
            right_serde=right.value.needed_serde(step.name, KEPT),
            row_serde=rows,
            function=joiner[0],
            takes_key=joiner[1],
            kind=kind,
        ),
        key=left.key,
        value=known,
    )
    return kept_table(joined, name)
