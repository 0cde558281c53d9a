"""What an aggregate keeps per key, or per key and window: one description for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from headrace.serdes import Serde


AggregationKind = Literal[
    "avg",
    "collect",
    "collect_distinct",
    "columns",
    "count",
    "count_distinct",
    "custom",
    "estimate_distinct",
    "max",
    "min",
    "reduce",
    "row",
    "sum",
    "top",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """Describes how values of one key become one result.

    The arithmetic of each kind is in :mod:`headrace.runtime.aggregates.algebras`.
    """

    kind: AggregationKind
    #: Writes the accumulator, for the state store and for the shuffle after combining.
    state_serde: Serde[Any]
    #: Writes the values of records that are not combined before the shuffle; a count uses no
    #: values, so None may take their place.
    value_serde: Serde[Any]
    #: The reducer, or the function that selects from the value.
    function: Callable[..., Any] | None = None
    #: Makes a fresh accumulator for ``custom``.
    accumulator: Callable[[], Any] | None = None
    #: The largest number of values to keep, for ``collect`` and ``top``.
    limit: int | None = None
    #: Whether updates come in, which take earlier values back.
    updates: bool = False
    #: The parts of a ``row``, by name.
    parts: tuple[tuple[str, Aggregation], ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{name} = {part.kind}" for name, part in self.parts) or self.kind

    @property
    def kinds(self) -> set[AggregationKind]:
        """Its own kind, or those of its parts."""
        return {part.kind for _, part in self.parts} or {self.kind}
