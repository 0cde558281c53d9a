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
from headrace.transactions.builder import BoltLike, SpoutLike, TransactionTopologyBuilder
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
from headrace.transactions.config import Configuration
from headrace.transactions.graph import TransactionTopology
from headrace.transactions.journal import JournalSpout
from headrace.transactions.topics import BoltDeclarer, Kind, SinkDeclarer, TopicSink, TopicSpout

__all__ = [
    "COMMIT_FAIL",
    "BatchGroupId",
    "Bolt",
    "BoltCollector",
    "BoltDeclarer",
    "BoltLike",
    "Component",
    "Configuration",
    "CustomGrouping",
    "FieldsDeclarer",
    "JournalSpout",
    "KeyValueBolt",
    "Kind",
    "OffsetSpout",
    "SinkDeclarer",
    "Spout",
    "SpoutCollector",
    "SpoutLike",
    "StatefulBolt",
    "TaskContext",
    "TopicSink",
    "TopicSpout",
    "TransactionState",
    "TransactionTopology",
    "TransactionTopologyBuilder",
    "Tuple",
]
