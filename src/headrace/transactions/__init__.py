"""Transactional topologies: spouts and bolts whose batches succeed or roll back as a whole."""

from __future__ import annotations

from headrace.topology import (
    COMMIT_FAIL,
    BatchGroupId,
    BoltCollector,
    CustomGrouping,
    SpoutCollector,
    TaskContext,
    Tuple,
)
from headrace.transactions.components import (
    Bolt,
    Component,
    FieldsDeclarer,
    KeyValueBolt,
    OffsetSpout,
    Spout,
    StatefulBolt,
    TransactionState,
)

__all__ = [
    "COMMIT_FAIL",
    "BatchGroupId",
    "Bolt",
    "BoltCollector",
    "Component",
    "CustomGrouping",
    "FieldsDeclarer",
    "KeyValueBolt",
    "OffsetSpout",
    "Spout",
    "SpoutCollector",
    "StatefulBolt",
    "TaskContext",
    "TransactionState",
    "Tuple",
]
