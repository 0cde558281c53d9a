"""Updates: results that replace earlier ones, and who must take the earlier ones back.

How often an operator of ``emit="update"`` speaks depends on how records are cut into batches.  A
table that holds the last value of each key does not mind; an operator that adds values up does.
So where such an operator stands behind, each new value comes with the old one before it, marked as
taken back.  Where none does, nothing of this happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.errors import TopologyError

if TYPE_CHECKING:
    from headrace.topology.operators.core import Operator

__all__ = ["check_updates", "gives_updates", "taking_back"]


def gives_updates(operators: Iterable[Operator], name: str) -> bool:
    """Tell whether what comes out of an operator replaces what came before."""
    return _source_of_updates({operator.name: operator for operator in operators}, name) is not None


def taking_back(
    operators: Sequence[Operator], children: Callable[[str], Sequence[Operator]]
) -> frozenset[str]:
    """Give the operators that take old values back, and those that carry them there."""
    taking: set[str] = set()
    for operator in reversed(operators):
        carries = operator.carries_back and not operator.stateful
        if operator.takes_back or (
            carries and any(child.name in taking for child in children(operator.name))
        ):
            taking.add(operator.name)
    return frozenset(taking)


def check_updates(operators: Sequence[Operator]) -> None:
    """Refuse updates where old values have no place, or do not come.

    Raises
    ------
    TopologyError
        An operator that goes by the time of records is fed by updates, or one that takes old
        values back is, through one that keeps none.
    """
    by_name = {operator.name: operator for operator in operators}
    for operator in operators:
        if not (operator.refuses_updates or operator.takes_back):
            continue
        for parent in operator.parents:
            source, through = _origin_of_updates(by_name, parent)
            if source is not None and operator.refuses_updates:
                raise _no_place(operator, source)
            if source is not None and through is not None:
                raise _not_carried(operator, source, through)


def _no_place(operator: Operator, source: Operator) -> TopologyError:
    return TopologyError(
        f"{operator.label} '{operator.name}' (made at {operator.origin}) goes by the time of each"
        f" record, but {source.label} '{source.name}' (made at {source.origin}) gives updates,"
        " which take earlier ones back",
        hint=f"give '{source.name}' emit=\"each\" for a result per record, or window it with"
        ' emit="close"',
    )


def _not_carried(operator: Operator, source: Operator, through: Operator) -> TopologyError:
    return TopologyError(
        f"{operator.label} '{operator.name}' (made at {operator.origin}) must take old values"
        f" back, for {source.label} '{source.name}' (made at {source.origin}) gives updates, but"
        f" {through.label} '{through.name}' (made at {through.origin}) between them keeps no old"
        " results",
        hint=f"give '{source.name}' emit=\"each\" for a result per record, or window it with"
        f" emit=\"close\", or let '{operator.name}' stand before '{through.name}'",
    )


def _source_of_updates(by_name: Mapping[str, Operator], name: str) -> Operator | None:
    source, through = _origin_of_updates(by_name, name)
    return source if through is None else None


def _origin_of_updates(
    by_name: Mapping[str, Operator], name: str
) -> tuple[Operator | None, Operator | None]:
    """Find who gives the updates that an operator gives or passes on; and who has no old ones."""
    operator = by_name[name]
    if operator.updates:
        return operator, None
    passing = operator.parents
    if operator.stateful:
        passing = tuple(p for i, p in enumerate(passing) if i in operator.update_ports)
    for parent in passing:
        source, through = _origin_of_updates(by_name, parent)
        if source is not None:
            return source, operator if operator.stateful else through
    return None, None
