"""Joins without a window: the last value of each side, by key."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.runtime.chunk import Chunk
from headrace.runtime.joins.sides import LEFT, NO_KEY, PAIR, RIGHT, Arrivals, Meetings, merged_sides
from headrace.runtime.keyless import count_keyless
from headrace.runtime.processors import Processor
from headrace.runtime.state.layouts import LatestLayout
from headrace.runtime.user_code.writing import writing
from headrace.topology.operators.joins import LatestJoin

if TYPE_CHECKING:
    from headrace.runtime.event_time.watermarks import Watermark

__all__ = ["LatestJoinProcessor", "LatestValues"]

_TIME = struct.Struct("<q")


class LatestJoinProcessor(Processor[LatestJoin]):
    """Gives what each record meets on the other side when it comes.

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
        """Give time and value of a key that was loaded; None where there is none."""
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
