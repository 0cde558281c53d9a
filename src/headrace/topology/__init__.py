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
from headrace.topology.operators_windows import (
    CountWindow,
    SessionWindow,
    SlidingWindow,
    TimeWindow,
    WindowAggregate,
)
from headrace.topology.pickling import check_pickling
from headrace.topology.shapes import shape_changes, state_shape
from headrace.topology.stages import Shuffle, Stage, StagePlan, cut_stages
from headrace.topology.times import SelectTimestamp
from headrace.topology.windowed import Windowed, WindowedSerde, WithWindow
from headrace.topology.windows import (
    CountWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    count_window,
    hopping,
    session,
    sliding,
    tumbling,
)

__all__ = [
    "ALONE",
    "Accumulator",
    "AccumulatorSerde",
    "Aggregate",
    "Aggregation",
    "Branch",
    "Copies",
    "CountWindow",
    "CountWindows",
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
    "SessionWindow",
    "SessionWindows",
    "Shuffle",
    "SidesJoin",
    "Sink",
    "SlidingWindow",
    "SlidingWindows",
    "Source",
    "Stage",
    "StagePlan",
    "Start",
    "TimeWindow",
    "TimeWindows",
    "TimedJoin",
    "ToStream",
    "Topology",
    "WindowAggregate",
    "WindowJoin",
    "Windowed",
    "WindowedSerde",
    "WithWindow",
    "add_numbers",
    "check_pickling",
    "commit_topic",
    "count_window",
    "cut_stages",
    "dead_letter_topic",
    "hopping",
    "mergeable",
    "session",
    "shape_changes",
    "sliding",
    "state_shape",
    "state_topic",
    "tumbling",
]
