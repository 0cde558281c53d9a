"""What the bytes of state say: read by the operator, by a serde of ours, else not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace import serdes
from headrace.columns.rows import CellsOf
from headrace.errors import DeserializationError
from headrace.runtime.aggregates.algebras import algebra_of
from headrace.topology.operators.columns import AggregateColumns
from headrace.topology.shapes import state_serdes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.runtime.state.layouts import Read
    from headrace.topology import Operator

__all__ = ["reader"]

_PLAIN = (serdes.bytes, serdes.string, serdes.int, serdes.float, serdes.json, serdes.plain)
#: Serdes that a commit record can name; nothing else is looked up by a name that was read.
_KNOWN = {repr(serde): serde for each in _PLAIN for serde in (each, serdes.nullable(each))}
# Of states of spouts and bolts only what is plain: a pickle that somebody wrote is not opened.
_KNOWN[repr(serdes.state)] = serdes.plain


def reader(known: Operator | None, shape: Mapping[str, str]) -> Read:
    """Choose how the values of a store are read.

    Parameters
    ----------
    known
        The operator, where the program is at hand.
    shape
        What the commit record says of the store.
    """
    own = {} if known is None else state_serdes(known)
    results = None if known is None else _results(known)

    def read(value: bytes, part: str) -> Any:
        if results is not None:
            return results(value)
        # A serde may be shown by the name of the one inside it.
        shown = _KNOWN.get(shape.get(part or "state", ""), serdes.bytes)
        try:
            return own.get(part or "state", shown).deserialize(value)
        except DeserializationError:
            return value

    return read


def _results(known: Operator) -> Callable[[bytes], Any] | None:
    """Give what turns the state of an aggregate into its result."""
    aggregation = getattr(known, "aggregation", None)
    if aggregation is not None:
        algebra = algebra_of(aggregation)
        return lambda value: algebra.result(*algebra.decode(pa.array([value], pa.binary())))
    if isinstance(known, AggregateColumns):
        result, serde = CellsOf(known.schema, known.shown, ()).result, known.state_serde
        return lambda value: result(serde.deserialize(value))
    return None
