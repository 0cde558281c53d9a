"""The shape of an operator's state: what must not change if a restart is to go on with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.topology.operators.core import Operator


Shape = Mapping[str, str]
"""The facts that determine a store's layout, as text that is the same in every process."""

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

_WINDOWS = ("window", "windows")
#: Parts that a topology may add without harm to its existing state.
_GROWS = ("states.", "kinds.")


class OperatorHandle(ABC, Generic[K, V, R]):
    """A pipeline's handle of an operator that keeps state, such as a table.

    Its type parameters are those of the keys, of the incoming values, and of what is kept.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the operator, and of its state store."""


def name_of(operator: str | OperatorHandle[Any, Any, Any]) -> str:
    """Return a name as given, or the name of a handle."""
    return operator if isinstance(operator, str) else operator.name


def state_shape(operator: Operator) -> dict[str, str]:
    """Return the facts that determine the layout of an operator's state.

    Examples
    --------
    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("job")
    >>> words = builder.source("words", serdes.string).key_by(str.lower)
    >>> words.count().sink("counts", serdes.json)
    <end of 'sink-counts'>
    >>> state_shape(builder.build().operator("count-words"))
    {'operator': 'Aggregate', 'key': 'key', 'kind': 'count', 'state': 'int'}
    """
    shape = {"operator": type(operator).__name__}
    for field in fields(operator):
        if field.name.endswith("_serde"):
            shape[field.name.removesuffix("_serde")] = repr(getattr(operator, field.name))
        elif field.name in _WINDOWS:
            shape["window"] = str(getattr(operator, field.name))
    shape |= {name: str(getattr(operator, name)) for name in operator.fixed}
    for spec in getattr(operator, "states", ()):
        shape[f"states.{spec.name}"] = repr(spec.serde)
        shape[f"kinds.{spec.name}"] = spec.kind if spec.ttl is None else f"{spec.kind} with ttl"
    aggregation = getattr(operator, "aggregation", None)
    if aggregation is not None:
        shape["kind"] = aggregation.kind
        shape["state"] = repr(aggregation.state_serde)
        for name, part in aggregation.parts:
            shape[f"agg.{name}"] = f"{part.kind}, {part.state_serde!r}"
        if aggregation.updates:
            shape["of"] = "updates"
    return shape


def state_serdes(operator: Operator) -> dict[str, Serde[Any]]:
    """Return the serdes that a shape names, by the same names."""
    found = {
        field.name.removesuffix("_serde"): getattr(operator, field.name)
        for field in fields(operator)
        if field.name.endswith("_serde")
    }
    specs = getattr(operator, "states", ())
    return found | {f"states.{spec.name}": spec.serde for spec in specs}


def shape_changes(old: Shape, new: Shape) -> list[str]:
    """Return the differences, one per part; a new state of a processor is not one.

    >>> shape_changes({"state": "int", "key": "key"}, {"state": "json", "key": "key"})
    ['state int -> json']
    >>> shape_changes({"states.last": "int"}, {"states.last": "int", "states.seen": "plain"})
    []
    """
    return [
        f"{part} {old.get(part, 'none')} -> {new.get(part, 'none')}"
        for part in dict.fromkeys([*old, *new])
        if old.get(part) != new.get(part) and (part in old or not part.startswith(_GROWS))
    ]
