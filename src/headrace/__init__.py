"""Exactly-once stream processing in Python over RocketMQ topics, run by Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import errors, serdes, transactions
    from headrace.errors import HeadraceError, TopologyError
    from headrace.runtime import StateMigration, TopologyTestDriver
    from headrace.serdes import Keyed, Serde
    from headrace.settings import JobSettings
    from headrace.spark import JobStatistics, StreamJob, TransactionJob, assert_same_on_spark
    from headrace.streams import (
        GlobalTable,
        KeyedStream,
        Stream,
        StreamBuilder,
        Table,
        WindowedStream,
        WindowedTable,
    )
    from headrace.topology import (
        Accumulator,
        BatchRecords,
        BatchToken,
        Context,
        Fired,
        Processor,
        Record,
        Topology,
        Windowed,
        count_window,
        event_timer,
        hopping,
        list_state,
        map_state,
        session,
        sliding,
        tumbling,
        value_state,
        wall_timer,
        window_state,
    )
    from headrace.transactions import TransactionTopology, TransactionTopologyBuilder

__all__ = [
    "Accumulator",
    "BatchRecords",
    "BatchToken",
    "Context",
    "Fired",
    "GlobalTable",
    "HeadraceError",
    "JobSettings",
    "JobStatistics",
    "Keyed",
    "KeyedStream",
    "Processor",
    "Record",
    "Serde",
    "StateMigration",
    "Stream",
    "StreamBuilder",
    "StreamJob",
    "Table",
    "Topology",
    "TopologyError",
    "TopologyTestDriver",
    "TransactionJob",
    "TransactionTopology",
    "TransactionTopologyBuilder",
    "Windowed",
    "WindowedStream",
    "WindowedTable",
    "assert_same_on_spark",
    "count_window",
    "errors",
    "event_timer",
    "hopping",
    "list_state",
    "map_state",
    "serdes",
    "session",
    "sliding",
    "transactions",
    "tumbling",
    "value_state",
    "wall_timer",
    "window_state",
]

# Imported at first use: the broker and the command line start without what they do not need,
# and only the names of ``headrace.spark`` load PySpark.
_HOMES = {
    "BatchRecords": "headrace.topology",
    "BatchToken": "headrace.topology",
    "Context": "headrace.topology",
    "Fired": "headrace.topology",
    "Processor": "headrace.topology",
    "Record": "headrace.topology",
    "event_timer": "headrace.topology",
    "list_state": "headrace.topology",
    "map_state": "headrace.topology",
    "value_state": "headrace.topology",
    "wall_timer": "headrace.topology",
    "window_state": "headrace.topology",
    "Accumulator": "headrace.topology",
    "GlobalTable": "headrace.streams",
    "HeadraceError": "headrace.errors",
    "JobSettings": "headrace.settings",
    "JobStatistics": "headrace.spark",
    "Keyed": "headrace.serdes",
    "KeyedStream": "headrace.streams",
    "Serde": "headrace.serdes",
    "StateMigration": "headrace.runtime",
    "Stream": "headrace.streams",
    "StreamBuilder": "headrace.streams",
    "StreamJob": "headrace.spark",
    "Table": "headrace.streams",
    "Topology": "headrace.topology",
    "TopologyError": "headrace.errors",
    "TopologyTestDriver": "headrace.runtime",
    "TransactionJob": "headrace.spark",
    "TransactionTopology": "headrace.transactions",
    "TransactionTopologyBuilder": "headrace.transactions",
    "assert_same_on_spark": "headrace.spark",
    "Windowed": "headrace.topology",
    "WindowedStream": "headrace.streams",
    "WindowedTable": "headrace.streams",
    "count_window": "headrace.topology",
    "hopping": "headrace.topology",
    "session": "headrace.topology",
    "sliding": "headrace.topology",
    "tumbling": "headrace.topology",
}
_MODULES = frozenset({"errors", "serdes", "transactions"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"headrace.{name}")
    home = _HOMES.get(name)
    if home is None:
        message = f"module 'headrace' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(home), name)
