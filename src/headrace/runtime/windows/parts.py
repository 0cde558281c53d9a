"""What windows that depend on their records keep: the parts of each key, in the order of time."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.runtime.chunk import NEVER
from headrace.runtime.state.interface import Timers
from headrace.runtime.user_code import writing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.runtime.aggregates.algebra import Algebra
    from headrace.runtime.processors import ProcessorContext
    from headrace.topology import WindowAggregate


_PARTS = b"p"
_TIMERS = b"t"
#: First and last event time, number, length of the accumulator.
_PART = struct.Struct(">qqqI")
_TIME = struct.Struct(">q")


@dataclass(slots=True)
class RecordGroup:
    """Records of one key that are kept together."""

    #: Lowest and highest event time.
    first: int
    last: int
    #: What the kind of window counts.
    number: int
    accumulator: Any
    #: The record that changed it since its result was given last: its mark (-1: none did), time
    #: and the watermark of its queue.  Not stored.
    mark: int = -1
    time: int = NEVER
    late_below: int = NEVER
    #: Windows and results that were given and are to be taken back with the next.  Not stored.
    given: list[tuple[tuple[int, int], Any]] = field(default_factory=list)


class PartStore:
    """The parts of every key, read when they are needed and written once per batch.

    Each key has one entry; a timer tells when it has something to do.

    Parameters
    ----------
    operator
        The window operator.
    algebra
        Reads and writes the accumulators.
    context
        Where the state lies.
    """

    def __init__(
        self, operator: WindowAggregate, algebra: Algebra, context: ProcessorContext
    ) -> None:
        self._operator = operator
        self._algebra = algebra
        self._context = context
        self.held: dict[bytes, list[RecordGroup]] = {}
        #: Timers of held keys, as they are set in the store.
        self._set: dict[bytes, int | None] = {}
        self._fresh: list[bytes] = []

    def take_fresh(self) -> list[bytes]:
        """Return the keys that were read since the last time."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def take_due(self, time: int) -> list[bytes]:
        """Return the keys whose timers are due, and read their parts."""
        settled = self._context.settled(self._operator)
        timers = Timers(self._context.store(self._operator), _TIMERS, settled=settled)
        due = [key for _, key in timers.due(time)]
        self.read(due)
        for key in due:
            self._set[key] = None
        return due

    def read(self, keys: Iterable[bytes]) -> None:
        """Read the parts of keys."""
        missing = [key for key in dict.fromkeys(keys) if key not in self.held]
        store = self._context.store(self._operator)
        self._fresh += missing
        found = store.get_many([_PARTS + key for key in missing])
        accumulators: list[bytes] = []
        parts: list[RecordGroup] = []
        for key, data in zip(missing, found, strict=True):
            own = self.held[key] = []
            self._set[key] = None
            if data is None:
                continue
            (timer,) = _TIME.unpack_from(data)
            self._set[key] = None if timer == NEVER else timer
            at = _TIME.size
            while at < len(data):
                first, last, number, size = _PART.unpack_from(data, at)
                at += _PART.size + size
                accumulators.append(data[at - size : at])
                own.append(RecordGroup(first, last, number, None))
            parts += own
        decoded = self._algebra.decode(pa.array(accumulators, pa.binary()))
        for part, accumulator in zip(parts, decoded, strict=True):
            part.accumulator = accumulator

    def write(self, dues: dict[bytes, int | None]) -> None:
        """Write the parts of all held keys, and when each has something to do."""
        store = self._context.store(self._operator)
        timers = Timers(store, _TIMERS)
        with writing(self._operator, "its state"):
            encoded = iter(
                self._algebra.encode(
                    [part.accumulator for parts in self.held.values() for part in parts]
                ).to_pylist()
            )
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for key, parts in self.held.items():
            due = dues[key]
            before = self._set[key]
            if due != before:
                if before is not None:
                    timers.clear(before, key)
                if due is not None:
                    timers.set(due, key)
            keys.append(_PARTS + key)
            values.append(_packed(parts, due, encoded) if parts else None)
        store.put_many(keys, values)


def _packed(parts: list[RecordGroup], due: int | None, encoded: Iterable[bytes]) -> bytes:
    pieces = [_TIME.pack(NEVER if due is None else due)]
    for part, data in zip(parts, encoded, strict=False):
        pieces.append(_PART.pack(part.first, part.last, part.number, len(data)))
        pieces.append(data)
    return b"".join(pieces)
