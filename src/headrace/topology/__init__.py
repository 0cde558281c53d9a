"""Topologies: immutable graphs of operators, their checks, their cut into stages, their pictures."""

from __future__ import annotations

from headrace.topology.accumulators import Accumulator, AccumulatorSerde, Copies, mergeable
from headrace.topology.aggregations import Aggregation
from headrace.topology.entries import EntriesSerde
from headrace.topology.errors import ErrorPolicy, dead_letter_topic
from headrace.topology.graph import Topology
from headrace.topology.joins import (
    ALONE,
    IntervalJoin,
    Joined,
    JoinKind,
    LatestJoin,
    SessionJoin,
    SidesJoin,
    TimedJoin,
    WindowJoin,
)
from headrace.topology.names import commit_topic, state_topic
from headrace.topology.numbers import add_numbers
from headrace.topology.operators import (
    Aggregate,
    Emit,
    Filter,
    FlatMap,
    FlatMapValues,
    KeyBy,
    Map,
    MapValues,
    Operator,
    Origin,
    Peek,
    RecordFunction,
    Sink,
    Source,
    Start,
    ToStream,
)
from headrace.topology.operators_flow import Branch, MapAsync, Merge, Output, Repartition
from headrace.topology.pickling import check_pickling
from headrace.topology.shapes import shape_changes, state_shape
from headrace.topology.stages import Shuffle, Stage, StagePlan, cut_stages
from headrace.topology.times import SelectTimestamp

__all__ = [
    "ALONE",
    "Accumulator",
    "AccumulatorSerde",
    "Aggregate",
    "Aggregation",
    "Branch",
    "Copies",
    "Emit",
    "EntriesSerde",
    "ErrorPolicy",
    "Filter",
    "FlatMap",
    "FlatMapValues",
    "IntervalJoin",
    "JoinKind",
    "Joined",
    "KeyBy",
    "LatestJoin",
    "Map",
    "MapAsync",
    "MapValues",
    "Merge",
    "Operator",
    "Origin",
    "Output",
    "Peek",
    "RecordFunction",
    "Repartition",
    "SelectTimestamp",
    "SessionJoin",
    "Shuffle",
    "SidesJoin",
    "Sink",
    "Source",
    "Stage",
    "StagePlan",
    "Start",
    "TimedJoin",
    "ToStream",
    "Topology",
    "WindowJoin",
    "add_numbers",
    "check_pickling",
    "commit_topic",
    "cut_stages",
    "dead_letter_topic",
    "mergeable",
    "shape_changes",
    "state_shape",
    "state_topic",
]
