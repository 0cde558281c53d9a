"""Joins of tables by a key that one side's rows hold of the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.keys import decode_key, encode_keys
from headrace.runtime.chunk import Chunk, count_keyless
from headrace.runtime.joins.sessions import ReferenceLayout, ReferringLayout, place
from headrace.runtime.joins.sides import NO_KEY, PAIR, Arrivals, merged_sides
from headrace.runtime.joins.tables import over_pairs, over_present
from headrace.runtime.processors import Processor
from headrace.runtime.user_code import UserFunction, writing
from headrace.topology.operators.tables import ALONE, ForeignKeyJoin, ForeignKeyRequests, Joined

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.runtime.processors import ProcessorContext


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
