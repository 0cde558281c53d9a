"""Joins of a stream with a table: each record looks up a row."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.keys import decode_key, encode_keys
from headrace.runtime.chunk import Chunk, count_keyless
from headrace.runtime.joins.sessions import (
    ReferenceLayout,
    ReferringLayout,
    SessionJoinProcessor,
    place,
)
from headrace.runtime.joins.sides import (
    LEFT,
    NO_KEY,
    PAIR,
    RIGHT,
    Arrivals,
    IntervalJoinProcessor,
    Meetings,
    WindowJoinProcessor,
    merged_sides,
)
from headrace.runtime.processors import Edge, Processor, ProcessorContext, RecordEdge
from headrace.runtime.state.layouts import LatestLayout, RowLayout
from headrace.runtime.user_code import UserFunction, writing
from headrace.topology.operators.tables import (
    ALONE,
    ForeignKeyJoin,
    ForeignKeyRequests,
    GlobalTableJoin,
    IntervalJoin,
    Joined,
    JoinKind,
    KeepTable,
    LatestJoin,
    Lookup,
    MapTable,
    SessionJoin,
    StreamTableJoin,
    TableJoin,
    WhereTable,
    WindowJoin,
)

if TYPE_CHECKING:
    from headrace.runtime.control import BlockKind, Rows
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.topology.operators.core import Operator


# Joins without a window: the last value of each side, by key.

_TIME = struct.Struct("<q")


class LatestJoinProcessor(Processor[LatestJoin]):
    """A join of each record with what it meets on the other side when it comes.

    The time of a pair is that of the later record.
    """

    layout = LatestLayout()

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle what came from each side in the order of the marks."""
        del watermarks
        arrivals = merged_sides(inputs, self.operator)
        if not len(arrivals):
            return Chunk.empty()
        values = LatestValues(self, (self.operator.left_serde, self.operator.right_serde))
        values.load(arrivals.keys)
        meetings, places = Meetings(), self._meet(arrivals, values)
        chosen: list[int] = []
        for i, found, time in places:
            meetings.add(arrivals.names[i], found, time, arrivals.marks[i])
            chosen.append(i)
        values.save()
        late_below = arrivals.chunk.late_below
        return meetings.chunk(None if late_below is None else late_below[np.array(chosen, np.intp)])

    def _meet(
        self, arrivals: Arrivals, values: LatestValues
    ) -> list[tuple[int, tuple[int, Any, Any], int]]:
        alone = self.operator.alone
        found: list[tuple[int, tuple[int, Any, Any], int]] = []
        for i, (port, key, value, time) in enumerate(
            zip(arrivals.ports, arrivals.keys, arrivals.values, arrivals.times, strict=True)
        ):
            other = None if key == NO_KEY else values.get(1 - port, key)
            if key != NO_KEY:
                values.put(port, key, (time, value))
            if other is not None:
                pair = (PAIR, other[1], value) if port else (PAIR, value, other[1])
                found.append((i, pair, max(time, other[0])))
            elif port + 1 in alone:
                found.append((i, (RIGHT, None, value) if port else (LEFT, value, None), time))
            elif key == NO_KEY:
                count_keyless(self.context.counters, self.operator.name)
        return found


class LatestValues:
    """The last value of each key, of one or both sides, with its time.

    Parameters
    ----------
    processor
        Whose store it is.
    serdes
        Of each side's values.
    """

    def __init__(self, processor: Processor[Any], serdes: Sequence[Any]) -> None:
        self._operator = processor.operator
        self._store = processor.context.store(processor.operator)
        self._serdes = serdes
        self._values: list[dict[bytes, tuple[int, Any]]] = [{} for _ in serdes]
        self._changed: list[dict[bytes, None]] = [{} for _ in serdes]

    def load(self, keys: Sequence[bytes]) -> None:
        """Read what is kept of some keys, many at once."""
        distinct = list(dict.fromkeys(keys))
        for port, (values, serde) in enumerate(zip(self._values, self._serdes, strict=True)):
            entries = self._store.get_many([_FAMILIES[port] + key for key in distinct])
            found = [(key, e) for key, e in zip(distinct, entries, strict=True) if e is not None]
            raws = pa.array([entry[_TIME.size :] for _, entry in found], pa.binary())
            read = serde.deserialize_many(raws) if found else []
            for (key, entry), value in zip(found, read, strict=True):
                values[key] = (_TIME.unpack_from(entry)[0], value)

    def get(self, port: int, key: bytes) -> tuple[int, Any] | None:
        """Return time and value of a key that was loaded; None where there is none."""
        return self._values[port].get(key)

    def put(self, port: int, key: bytes, value: tuple[int, Any] | None) -> None:
        """Set time and value of a key; None deletes."""
        if value is None:
            self._values[port].pop(key, None)
        else:
            self._values[port][key] = value
        self._changed[port][key] = None

    def save(self) -> None:
        """Write what changed, many at once."""
        for port, (changed, serde) in enumerate(zip(self._changed, self._serdes, strict=True)):
            values = self._values[port]
            kept = [(key, *values[key]) for key in changed if key in values]
            with writing(self._operator, f"its state (serde {serde!r})"):
                raws = serde.serialize_many([value for _, _, value in kept]).to_pylist()
            self._store.put_many(
                [_FAMILIES[port] + key for key, _, _ in kept],
                [_TIME.pack(time) + raw for (_, time, _), raw in zip(kept, raws, strict=True)],
            )
            for key in changed:
                if key not in values:
                    self._store.delete(_FAMILIES[port] + key)
            changed.clear()


_FAMILIES = (b"l", b"r")


# Tables: kept, changed row by row, and joined with each other.


class KeepTableProcessor(Processor[KeepTable]):
    """Keeps the last value of each key; a delete of what is not there goes no further."""

    layout = RowLayout("value")

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle changes in the order of the marks."""
        del watermarks
        arrivals = merged_sides(inputs, self.operator)
        if not len(arrivals):
            return Chunk.empty()
        rows = LatestValues(self, (self.operator.value_serde,))
        rows.load(arrivals.keys)
        changed: list[int] = []
        for i, (key, value) in enumerate(zip(arrivals.keys, arrivals.values, strict=True)):
            if key == NO_KEY:
                count_keyless(self.context.counters, self.operator.name)
            elif value is not None:
                rows.put(0, key, (arrivals.times[i], value))
                changed.append(i)
            elif rows.get(0, key) is not None:
                rows.put(0, key, None)
                changed.append(i)
        rows.save()
        return arrivals.chunk.take(np.array(changed, np.intp))


class MapTableProcessor(Processor[MapTable]):
    """Calls the function for every row that is there."""

    def __init__(self, operator: MapTable, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._function = UserFunction(operator, operator.function, context.locator)

    def process(self, chunk: Chunk) -> Chunk:
        """Replace values; deletes pass."""
        kept, results = over_present(chunk, self._function)
        return kept.with_values(results)


class WhereTableProcessor(Processor[WhereTable]):
    """Makes deletes of the rows that are not wanted."""

    def __init__(self, operator: WhereTable, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._function = UserFunction(operator, operator.function, context.locator)

    def process(self, chunk: Chunk) -> Chunk:
        """Keep rows; deletes pass, and rows that are not wanted become deletes."""
        kept, wanted = over_present(chunk, self._function)
        pairs = zip(kept.values, wanted, strict=True)
        return kept.with_values([value if keep else None for value, keep in pairs])


def over_present(
    chunk: Chunk, function: UserFunction, *columns: Sequence[Any]
) -> tuple[Chunk, list[Any]]:
    """Call a function for each record whose value is not None, with its value or with columns.

    Return the records that are left, and for each the result, or None where there was no value.
    """
    picks = [i for i, value in enumerate(chunk.values) if value is not None]
    rows = chunk.take(np.array(picks, np.intp))
    arguments = [[column[i] for i in picks] for column in columns] or [rows.values]
    # The places stand in for the values, so that what was skipped is known.
    kept, results = function.each(rows.with_values(picks), *arguments)
    if len(kept) == len(rows) == len(chunk):
        return chunk, results
    found = dict(zip(kept.values, results, strict=True))
    left = [i for i, value in enumerate(chunk.values) if value is None or i in found]
    return chunk.take(np.array(left, np.intp)), [found.get(i) for i in left]


def over_pairs(chunk: Chunk, function: UserFunction, *, takes_key: bool) -> Chunk:
    """Make rows of pairs of rows; None, which deletes, stays."""
    columns = [[pair and pair[side] for pair in chunk.values] for side in (0, 1)]
    if takes_key:
        columns.insert(0, chunk.key_list())
    kept, results = over_present(chunk, function, *columns)
    return kept.with_values(results)


class TableJoinProcessor(Processor[TableJoin]):
    """A join of tables: the joined row of a key when one side's changes, a delete when it ends."""

    layout = LatestLayout()

    def __init__(self, operator: TableJoin, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._function = UserFunction(operator, operator.function, context.locator)

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle changes of both sides in the order of the marks."""
        del watermarks
        arrivals = merged_sides(inputs, self.operator)
        if not len(arrivals):
            return Chunk.empty()
        rows = LatestValues(self, (self.operator.left_serde, self.operator.right_serde))
        rows.load(arrivals.keys)
        changes = self._changes(arrivals, rows)
        rows.save()
        chunk = arrivals.chunk.take(np.array([i for i, _, _ in changes], np.intp))
        chunk.times = np.array([time for _, _, time in changes], np.int64)
        pairs = [pair for _, pair, _ in changes]
        return over_pairs(
            chunk.with_values(pairs), self._function, takes_key=self.operator.takes_key
        )

    def _changes(
        self, arrivals: Arrivals, rows: LatestValues
    ) -> list[tuple[int, tuple[Any, Any] | None, int]]:
        """Return the place of each change, the pair of rows that it makes or None, and its time."""
        found: list[tuple[int, tuple[Any, Any] | None, int]] = []
        kind = self.operator.kind
        for i, (port, key, value) in enumerate(
            zip(arrivals.ports, arrivals.keys, arrivals.values, strict=True)
        ):
            if key == NO_KEY:
                count_keyless(self.context.counters, self.operator.name)
                continue
            time = arrivals.times[i]
            was = _joined(kind, rows.get(0, key), rows.get(1, key))
            rows.put(port, key, None if value is None else (time, value))
            sides = rows.get(0, key), rows.get(1, key)
            is_there = _joined(kind, *sides)
            if is_there or was:
                pair = sides[0] and sides[0][1], sides[1] and sides[1][1]
                later = max([time, *(side[0] for side in sides if side is not None)])
                found.append((i, pair if is_there else None, later))
        return found


def _joined(kind: JoinKind, left: object, right: object) -> bool:
    """Return whether a kind of join has a row for what both sides have."""
    if kind == "inner":
        return left is not None and right is not None
    return left is not None or (kind == "outer" and right is not None)


# Results of joins: one kind's share of all meetings, through the user's function.


class JoinedProcessor(Processor[Joined]):
    """Calls the user's function for the meetings that the kind of join gives."""

    def __init__(self, operator: Joined, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._function = UserFunction(operator, operator.function, context.locator)
        self._given = ALONE[operator.kind] | {PAIR}

    def process(self, chunk: Chunk) -> Chunk:
        """Pick the meetings and make results of them."""
        given = self._given
        picks = [i for i, found in enumerate(chunk.values) if found[0] in given]
        if len(picks) < len(chunk):
            chunk = chunk.take(np.array(picks, np.intp))
        columns = [[found[1] for found in chunk.values], [found[2] for found in chunk.values]]
        if self.operator.takes_key:
            columns.insert(0, chunk.key_list())
        kept, results = self._function.each(chunk, *columns)
        return kept.with_values(results)


# Joins of tables by a key that one side's rows hold of the other.


class ForeignKeyRequestsProcessor(Processor[ForeignKeyRequests]):
    """Keeps which key each row refers to, and tells it, and the one before, of every change.

    A request is (own key, row as bytes, whether the row is gone from everywhere): a row that moves
    to another key is taken back from the old one without a word to those behind.
    """

    layout = ReferenceLayout()

    def __init__(self, operator: ForeignKeyRequests, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._selector = UserFunction(operator, operator.selector, context.locator)

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle changed rows in the order of the marks."""
        del watermarks
        chunk = Chunk.merge(list(inputs.values()))
        if not len(chunk):
            return chunk
        chunk, selected = over_present(chunk, self._selector)
        with writing(self.operator, "a key"):
            keys, others = encode_keys(chunk.key_list()), encode_keys(selected)
        with writing(self.operator, f"a row (serde {self.operator.value_serde!r})"):
            rows = self.operator.value_serde.serialize_many(chunk.values).to_pylist()
        store = self.context.store(self.operator)
        known = dict(zip(keys, store.get_many(keys), strict=True))
        places: list[int] = []
        targets: list[bytes] = []
        requests: list[tuple[bytes, bytes | None, bool]] = []
        for i, (key, other, row) in enumerate(zip(keys, others, rows, strict=True)):
            if key == NO_KEY:
                count_keyless(self.context.counters, self.operator.name)
                continue
            before, there = known.get(key), chunk.values[i] is not None
            known[key] = other if there else None
            if before is not None and (not there or before != other):
                places.append(i)
                targets.append(before)
                requests.append((key, None, not there))
            if there:
                places.append(i)
                targets.append(other)
                requests.append((key, row, False))
        store.put_many(list(known), list(known.values()))
        moved = chunk.take(np.array(places, np.intp)).with_values(requests)
        return moved.with_keys([decode_key(target) for target in targets])


class ForeignKeyJoinProcessor(Processor[ForeignKeyJoin]):
    """Keeps the rows that refer to a key beside the row of that key.

    State: ``r`` and key to the row; ``s``, key and referring key to the referring row.
    """

    layout = ReferringLayout()

    def __init__(self, operator: ForeignKeyJoin, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._function = UserFunction(operator, operator.function, context.locator)

    def run(self, inputs: Mapping[int, Chunk], watermarks: Sequence[Watermark]) -> Chunk:
        """Handle requests and rows in the order of the marks."""
        del watermarks
        arrivals = merged_sides(inputs, self.operator)
        if not len(arrivals):
            return Chunk.empty()
        self.context.store(self.operator).get_many([b"r" + key for key in arrivals.keys])
        places: list[int] = []
        owners: list[bytes] = []
        pairs: list[tuple[Any, Any] | None] = []
        for i in range(len(arrivals)):
            step = self._row(arrivals, i) if arrivals.ports[i] else self._request(arrivals, i)
            for owner, pair in step:
                places.append(i)
                owners.append(owner)
                pairs.append(pair)
        chunk = arrivals.chunk.take(np.array(places, np.intp)).with_values(pairs)
        chunk = chunk.with_keys(list(map(decode_key, owners)))
        return over_pairs(chunk, self._function, takes_key=self.operator.takes_key)

    def _request(self, arrivals: Arrivals, i: int) -> list[tuple[bytes, tuple[Any, Any] | None]]:
        owner, row, gone = arrivals.values[i]
        key, store = arrivals.keys[i], self.context.store(self.operator)
        own = place(key) + owner
        if row is None:
            store.delete(own)
            return [(owner, None)] if gone else []
        store.put(own, row)
        found = None if key == NO_KEY else store.get(b"r" + key)
        return [(owner, self._pair(row, found))]

    def _row(self, arrivals: Arrivals, i: int) -> list[tuple[bytes, tuple[Any, Any] | None]]:
        key, value, store = arrivals.keys[i], arrivals.values[i], self.context.store(self.operator)
        if key == NO_KEY:
            count_keyless(self.context.counters, self.operator.name)
            return []
        found = None
        if value is None:
            store.delete(b"r" + key)
        else:
            with writing(self.operator, f"its state (serde {self.operator.right_serde!r})"):
                found = self.operator.right_serde.serialize(value)
            store.put(b"r" + key, found)
        start = place(key)
        entries = list(store.range(start, start[:-1] + b"\x01"))
        return [(found_at[len(start) :], self._pair(row, found)) for found_at, row in entries]

    def _pair(self, row: bytes, found: bytes | None) -> tuple[Any, Any] | None:
        """Return both rows, None where there is no result."""
        if found is None and self.operator.kind == "inner":
            return None
        left = self.operator.row_serde.deserialize(row)
        return left, None if found is None else self.operator.right_serde.deserialize(found)


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
    WhereTable: WhereTableProcessor,
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
