"""Handling: what stands between a task and its topics, and what becomes of records that fail."""

from __future__ import annotations

from headrace.connect.handling.conversion import Converters, PlainConverter, RowRef, SinkRow
from headrace.connect.handling.failures import (
    SKIPPED,
    DeadLetter,
    Failure,
    Handling,
    Origin,
    Skipped,
    TransformLink,
)
from headrace.connect.handling.retrying import (
    METRICS,
    Again,
    Counters,
    ErrorPolicy,
    GiveUp,
    HandlingStage,
    HandlingStatistics,
    Patience,
    Retrying,
    Tries,
    after_failure,
)
from headrace.connect.handling.sink_chain import SinkChain, takes_columns
from headrace.connect.handling.source_chain import Encoded, SourceChain, sink_chain, source_chain

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
    "HandlingStage",
    "HandlingStatistics",
    "Origin",
    "Patience",
    "PlainConverter",
    "Retrying",
    "RowRef",
    "SinkChain",
    "SinkRow",
    "Skipped",
    "SourceChain",
    "TransformLink",
    "Tries",
    "after_failure",
    "sink_chain",
    "source_chain",
    "takes_columns",
]
