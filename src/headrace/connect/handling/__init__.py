"""Handling: what stands between a task and its topics, and what becomes of records that fail."""

from __future__ import annotations

from headrace.connect.handling.chains import sink_chain, source_chain
from headrace.connect.handling.conversion import Converters
from headrace.connect.handling.counters import METRICS, Counters, HandlingStatistics
from headrace.connect.handling.dead_letters import DeadLetter
from headrace.connect.handling.failures import SKIPPED, Failure, Handling, Origin, Skipped
from headrace.connect.handling.links import TransformLink
from headrace.connect.handling.plain import PlainConverter
from headrace.connect.handling.policy import ErrorPolicy
from headrace.connect.handling.retrying import (
    Again,
    GiveUp,
    Patience,
    Retrying,
    Tries,
    after_failure,
)
from headrace.connect.handling.rows import Message, RowRef
from headrace.connect.handling.sink_chain import SinkChain, takes_columns
from headrace.connect.handling.source_chain import Encoded, SourceChain
from headrace.connect.handling.stages import Stage

__all__ = [
    "METRICS",
    "SKIPPED",
    "Again",
    "Converters",
    "Counters",
    "DeadLetter",
    "Encoded",
    "ErrorPolicy",
    "Failure",
    "GiveUp",
    "Handling",
    "HandlingStatistics",
    "Message",
    "Origin",
    "Patience",
    "PlainConverter",
    "Retrying",
    "RowRef",
    "SinkChain",
    "Skipped",
    "SourceChain",
    "Stage",
    "TransformLink",
    "Tries",
    "after_failure",
    "sink_chain",
    "source_chain",
    "takes_columns",
]
