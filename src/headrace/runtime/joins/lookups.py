"""Joins of a stream with a table: each record looks up a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headrace.keys import encode_keys
from headrace.runtime.chunk import Chunk, count_keyless
from headrace.runtime.joins.foreign_keys import (
    ForeignKeyJoinProcessor,
    ForeignKeyRequestsProcessor,
    JoinedProcessor,
)
from headrace.runtime.joins.interval import IntervalJoinProcessor
from headrace.runtime.joins.sessions import SessionJoinProcessor
from headrace.runtime.joins.sides import NO_KEY, Arrivals, merged_sides
from headrace.runtime.joins.tables import (
    FilterTableProcessor,
    KeepTableProcessor,
    LatestJoinProcessor,
    LatestValues,
    MapTableProcessor,
    TableJoinProcessor,
)
from headrace.runtime.joins.windows import WindowJoinProcessor
from headrace.runtime.processors import Processor, RecordEdge
from headrace.runtime.state.layouts import RowLayout
from headrace.runtime.user_code import UserFunction, writing
from headrace.topology.operators.tables import (
    FilterTable,
    ForeignKeyJoin,
    ForeignKeyRequests,
    GlobalTableJoin,
    IntervalJoin,
    Joined,
    KeepTable,
    LatestJoin,
    Lookup,
    MapTable,
    SessionJoin,
    StreamTableJoin,
    TableJoin,
    WindowJoin,
)

if TYPE_CHECKING:
    from headrace.runtime.blocks import BlockKind, Rows
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.processors import Edge, ProcessorContext
    from headrace.topology.operators.core import Operator


LookupT = TypeVar("LookupT", bound=Lookup)


class _Lookup(Processor[LookupT]):
    """Keeps the rows of a table; a record of the stream meets the row as it is at that moment."""

    def __init__(self, operator: LookupT, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._function = UserFunction(operator, operator.function, context.locator)

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle rows and records in the order of the marks."""
        del watermarks
        inputs, wanted = self.wanted(inputs)
        arrivals = merged_sides(inputs, self.operator)
        if not len(arrivals):
            return Chunk.empty()
        keys = self._lookup_keys(arrivals, wanted)
        rows = LatestValues(self, (self.operator.right_serde,))
        rows.load(keys)
        chosen, found = self._look_up(arrivals, keys, rows)
        rows.save()
        chunk = arrivals.chunk.take(np.array(chosen, np.intp))
        columns = [chunk.values, found]
        if self.operator.takes_key:
            columns.insert(0, chunk.key_list())
        kept, results = self._function.each(chunk, *columns)
        return kept.with_values(results)

    def wanted(self, inputs: Mapping[int, Chunk]) -> tuple[Mapping[int, Chunk], list[Any] | None]:
        """Return the inputs, and the keys that the records look up where these are not their own."""
        return inputs, None

    def _lookup_keys(self, arrivals: Arrivals, wanted: list[Any] | None) -> list[bytes]:
        if wanted is None:
            return arrivals.keys
        with writing(self.operator, "a key to look up"):
            others = iter(encode_keys(wanted))
        pairs = zip(arrivals.ports, arrivals.keys, strict=True)
        return [key if port else next(others) for port, key in pairs]

    def _look_up(
        self, arrivals: Arrivals, keys: list[bytes], rows: LatestValues
    ) -> tuple[list[int], list[Any]]:
        chosen: list[int] = []
        found: list[Any] = []
        inner = self.operator.kind == "inner"
        for i, (port, key) in enumerate(zip(arrivals.ports, keys, strict=True)):
            if key == NO_KEY and (port or inner):
                count_keyless(self.context.counters, self.operator.name)
            elif port:
                value = arrivals.values[i]
                rows.put(0, key, None if value is None else (arrivals.times[i], value))
            else:
                row = rows.get(0, key)
                if row is not None or not inner:
                    chosen.append(i)
                    found.append(None if row is None else row[1])
        return chosen, found


class StreamTableJoinProcessor(_Lookup[StreamTableJoin]):
    """Looks records up by their own keys."""

    layout = RowLayout("right")


class GlobalTableJoinProcessor(_Lookup[GlobalTableJoin]):
    """Looks records up by keys that a selector gives; every partition has all rows."""

    layout = RowLayout("right", everywhere=True)

    def __init__(self, operator: GlobalTableJoin, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._selector = UserFunction(operator, operator.selector, context.locator)

    @classmethod
    def edge(cls, operator: GlobalTableJoin, port: int, context: ProcessorContext) -> Edge:
        """Send rows of the table to every partition."""
        if port:
            return BroadcastEdge(operator, port, context.locator)
        return super().edge(operator, port, context)

    def wanted(self, inputs: Mapping[int, Chunk]) -> tuple[Mapping[int, Chunk], list[Any] | None]:
        """Call the selector for the records of the stream."""
        records = inputs.get(0, Chunk.empty())
        keys = [records.key_list()] if self.operator.selects_by_key else []
        kept, wanted = self._selector.each(records, *keys, records.values)
        return {**inputs, 0: kept}, wanted


class BroadcastEdge(RecordEdge):
    """Sends every record to every partition."""

    def flush(self, partitions: int) -> Iterator[tuple[BlockKind, int, Rows]]:
        """Yield everything taken so far, once for each partition."""
        for kind, _, rows in super().flush(1):
            yield from ((kind, partition, rows) for partition in range(partitions))


# Every operator that joins, and what runs it.

#: Operator to processor.
JOINS: dict[type[Operator], type[Processor[Any]]] = {
    FilterTable: FilterTableProcessor,
    ForeignKeyJoin: ForeignKeyJoinProcessor,
    ForeignKeyRequests: ForeignKeyRequestsProcessor,
    GlobalTableJoin: GlobalTableJoinProcessor,
    IntervalJoin: IntervalJoinProcessor,
    Joined: JoinedProcessor,
    KeepTable: KeepTableProcessor,
    LatestJoin: LatestJoinProcessor,
    MapTable: MapTableProcessor,
    SessionJoin: SessionJoinProcessor,
    StreamTableJoin: StreamTableJoinProcessor,
    TableJoin: TableJoinProcessor,
    WindowJoin: WindowJoinProcessor,
}
