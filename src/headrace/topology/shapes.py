"""The shape of an operator's state: what must stay the same for a restart to go on with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.topology.operators import Operator

__all__ = ["Shape", "shape_changes", "state_shape"]

Shape = Mapping[str, str]
"""What the layout of a store follows from, as text that is the same in every process."""

_WINDOWS = ("window", "windows")


def state_shape(operator: Operator) -> dict[str, str]:
    """Say what the layout of an operator's state follows from.

    Examples
    --------
    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("job")
    >>> words = builder.source("words", serdes.string).key_by(str.lower)
    >>> words.count().to_stream().sink("counts", serdes.json)
    <end of 'sink-counts'>
    >>> state_shape(builder.build().operator("count-words"))
    {'operator': 'Aggregate', 'key': 'key', 'kind': 'count', 'state': 'int'}
    """
    shape = {"operator": type(operator).__name__}
    for field in fields(operator):
        value = getattr(operator, field.name)
        if field.name.endswith("_serde"):
            shape[field.name.removesuffix("_serde")] = repr(value)
        elif field.name in _WINDOWS:
            shape["window"] = str(value)
    aggregation = getattr(operator, "aggregation", None)
    if aggregation is not None:
        shape["kind"] = aggregation.kind
        shape["state"] = repr(aggregation.state_serde)
        if aggregation.updates:
            shape["of"] = "updates"
    return shape


def shape_changes(old: Shape, new: Shape) -> list[str]:
    """Tell what differs, a part a line.

    >>> shape_changes({"state": "int", "key": "key"}, {"state": "json", "key": "key"})
    ['state int -> json']
    """
    return [
        f"{part} {old.get(part, 'none')} -> {new.get(part, 'none')}"
        for part in dict.fromkeys([*old, *new])
        if old.get(part) != new.get(part)
    ]
