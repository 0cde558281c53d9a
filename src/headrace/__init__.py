"""Exactly-once stream processing in Python over RocketMQ topics, run by Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import serdes
    from headrace.errors import HeadraceError, TopologyError
    from headrace.serdes import Keyed
    from headrace.streams import KeyedStream, Stream, StreamBuilder, Table
    from headrace.topology import Accumulator, Topology

__all__ = [
    "Accumulator",
    "HeadraceError",
    "Keyed",
    "KeyedStream",
    "Stream",
    "StreamBuilder",
    "Table",
    "Topology",
    "TopologyError",
    "serdes",
]

# Imported at first use: the broker and the command line start without what they do not need.
_HOMES = {
    "Accumulator": "headrace.topology",
    "HeadraceError": "headrace.errors",
    "Keyed": "headrace.serdes",
    "KeyedStream": "headrace.streams",
    "Stream": "headrace.streams",
    "StreamBuilder": "headrace.streams",
    "Table": "headrace.streams",
    "Topology": "headrace.topology",
    "TopologyError": "headrace.errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        if name == "serdes":
            return importlib.import_module("headrace.serdes")
        message = f"module 'headrace' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)
