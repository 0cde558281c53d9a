"""The streams front door: typed method chains that build a topology."""

from headrace.streams.aggregates import (
    Measure,
    aggregate,
    avg,
    collect,
    count,
    count_distinct,
    max_,
    min_,
    reduce,
    sum_,
    top,
)
from headrace.streams.builder import StreamBuilder
from headrace.streams.joins.chain import StreamJoin
from headrace.streams.joins.results import JoinedStream
from headrace.streams.keyed import KeyedStream
from headrace.streams.outputs import End
from headrace.streams.stream import ProcessedStream, Stream
from headrace.streams.tables import GlobalTable, Table
from headrace.streams.windowed import WindowedStream, WindowedTable
from headrace.topology import Accumulator

__all__ = [
    "Accumulator",
    "End",
    "GlobalTable",
    "JoinedStream",
    "KeyedStream",
    "Measure",
    "ProcessedStream",
    "Stream",
    "StreamBuilder",
    "StreamJoin",
    "Table",
    "WindowedStream",
    "WindowedTable",
    "aggregate",
    "avg",
    "collect",
    "count",
    "count_distinct",
    "max_",
    "min_",
    "reduce",
    "sum_",
    "top",
]
