"""Running users' processors: records and timers in, what they forward out."""

from __future__ import annotations

import heapq
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import TopologyError
from headrace.keys import decode_key, encode_keys
from headrace.runtime.chunk import NEVER, Chunk
from headrace.runtime.low_level.cells import (
    EVENT,
    KINDS,
    STATE,
    WALL,
    Cells,
    Scope,
    State,
    datetime_of,
    key_of_entry,
    key_part,
    milliseconds,
    name_part,
    rounded_up,
)
from headrace.runtime.processors import Processor, ProcessorContext, TimedProcessor
from headrace.runtime.state.interface import Timers
from headrace.runtime.state.layouts import Read, Span, StateEntry, StateLayout
from headrace.runtime.user_code import UserFunction, writing
from headrace.topology.low_level import Fired, Record
from headrace.topology.operators.process import KeyedProcess, Process, step_of

if TYPE_CHECKING:
    from datetime import datetime

    from headrace.runtime.event_time.watermarks import Watermark
    from headrace.topology.operators.core import Operator


# Timers of a user's processor: set for a key, fired in the order of their times.


class Alarms:
    """All timers of one clock.

    Parameters
    ----------
    cells
        Where they lie.
    family
        First byte of their keys.
    early
        The same of those that are set when their time has passed.
    settled, passed
        Time up to which all have fired, and how far time had come.
    """

    def __init__(
        self, cells: Cells, family: bytes, early: bytes, *, settled: int, passed: int
    ) -> None:
        self._timers = Timers(cells, family, settled=settled, passed=passed, early=early)
        self._family = family
        #: Timers that fire now, as a heap, and which of them are still set.
        self._firing: list[tuple[int, bytes]] | None = None
        self._living: set[tuple[int, bytes]] = set()
        self._limit = 0
        self._at = 0

    def set(self, time: int, what: bytes, step: int) -> None:
        """Set a timer; one that a firing timer sets fires behind it, also now."""
        if self._firing is None:
            self._timers.set(time, what)
            return
        time = max(time, self._at + step)
        if time > self._limit:
            self._timers.set(time, what)
        elif (time, what) not in self._living:
            self._living.add((time, what))
            heapq.heappush(self._firing, (time, what))

    def clear(self, time: int, what: bytes) -> None:
        """Take a timer back."""
        self._living.discard((time, what))
        self._timers.clear(time, what)

    def due(self, limit: int) -> Iterator[tuple[int, bytes, str]]:
        """Take the timers up to a time, oldest first: time, record key, name."""
        self._firing = list(self._timers.due(limit))
        self._living = set(self._firing)
        self._limit = limit
        try:
            while self._firing:
                item = heapq.heappop(self._firing)
                if item not in self._living:
                    continue
                self._living.discard(item)
                self._at, what = item
                key = key_of_entry(self._family + bytes(8) + what)
                yield self._at, key, what[4 + len(key) + 1 :].decode()
        finally:
            self._firing = None

    def next(self) -> int | None:
        """Return the time of the first timer."""
        return self._timers.next()


class KeyTimer:
    """A declared timer, of the key that is handled.

    Parameters
    ----------
    name
        Its name.
    alarms
        The timers of its clock.
    scope
        Whose timer it is.
    step
        Fires at multiples of this, ms.
    """

    def __init__(self, name: str, alarms: Alarms, scope: Scope, step: int) -> None:
        self._tail = name_part(name)
        self._alarms = alarms
        self._scope = scope
        self._step = step

    def set(self, time: datetime) -> None:
        """Set the timer to fire at a time."""
        self._alarms.set(self._rounded(time), self._what(), self._step)

    def clear(self, time: datetime) -> None:
        """Take a time back."""
        self._alarms.clear(self._rounded(time), self._what())

    def _rounded(self, time: datetime) -> int:
        return rounded_up(milliseconds(time), self._step)

    def _what(self) -> bytes:
        return self._scope.head + self._tail


# How the states of users' processors lie in their store.

_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_BIAS = 1 << 63
_END_BYTES = 8


class ProcessLayout(StateLayout):
    """Declared states and timers by record key; see :mod:`headrace.runtime.low_level.cells`.

    Parameters
    ----------
    kinds
        The kind of each declared state, by its name, as the shape of the store has it.
    """

    def __init__(self, kinds: Mapping[str, str] | None = None) -> None:
        self._kinds = kinds or {}

    def of(self, shape: Mapping[str, str]) -> ProcessLayout:
        """Return the layout of one processor's store."""
        prefix = "kinds."
        return ProcessLayout(
            {
                part.removeprefix(prefix): kind
                for part, kind in shape.items()
                if part.startswith(prefix)
            }
        )

    def spans(self, key: bytes) -> list[Span]:
        """Return a span for each declared state."""
        heads = [STATE + key_part(key) + name_part(name) for name in self._kinds]
        # A name is ASCII, so its last byte can grow by one.
        return [(head, head[:-1] + bytes([head[-1] + 1])) for head in heads]

    def key_of(self, entry: bytes) -> bytes:
        """Return the record key of a state, of its end or of a timer."""
        return key_of_entry(entry)

    def shown(self, entry: bytes, value: bytes, read: Read) -> list[StateEntry]:
        """Return what a state holds; a state of the store that no shape names is left out."""
        if entry[:1] != STATE:
            return []
        key = key_of_entry(entry)
        at = 1 + _LENGTH.size + len(key)
        name = entry[at + 1 : at + 1 + entry[at]].decode()
        kind, _, ends = self._kinds.get(name, "").partition(" ")
        more = entry[at + 1 + entry[at] :]
        if not kind or (kind == "list" and not more):
            return []
        own = value[_END_BYTES:] if ends else value
        found: dict[str, Any] = {}
        if kind == "map":
            found["item"] = decode_key(more)
        elif kind == "list":
            found["item"] = _NUMBER.unpack(more)[0]
        elif kind == "window":
            found["start"] = found["end"] = _NUMBER.unpack(more)[0] - _BIAS
        return [StateEntry(decode_key(key), read(own, f"states.{name}"), part=name, **found)]

    def gathered(self, entries: Sequence[StateEntry]) -> Any:
        """Put together the states of one key: a dict of them, of a map a dict, of a list a list."""
        parts = super().gathered(entries)
        for name in parts or ():
            if self._kinds[name].startswith("list"):
                parts[name] = list(parts[name].values())
        return parts


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class _Given:
    """What a processor forwarded to one child."""

    records: list[Record[Any, Any]] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    late_below: list[int] = field(default_factory=list)

    def chunk(self) -> Chunk:
        headers = [dict(record.headers) or None for record in self.records]
        return Chunk(
            [record.key for record in self.records],
            [record.value for record in self.records],
            np.array([milliseconds(record.time) for record in self.records], np.int64),
            np.array(self.marks, np.int64),
            headers if any(headers) else None,
            np.array(self.late_below, np.int64),
        )


class _ProcessorContext:
    """The context of one user's processor in one task."""

    def __init__(self, operator: Process, context: ProcessorContext) -> None:
        self._operator = operator
        self._context = context
        self._states: dict[str, State] = {}
        self._timers: dict[str, KeyTimer] = {}
        self.given: dict[str, _Given] = defaultdict(_Given)
        #: Of what is handled.
        self.mark = 0
        self.late_below = NEVER
        self.now = NEVER

    def declare(self, states: dict[str, State], timers: dict[str, KeyTimer]) -> None:
        """Take what the operator declares."""
        self._states, self._timers = states, timers

    @property
    def partition(self) -> int:
        return self._context.partition

    @property
    def event_time(self) -> datetime | None:
        return None if self.now == NEVER else datetime_of(self.now)

    @property
    def wall_clock(self) -> datetime:
        return datetime_of(self._context.wall_clock)

    def value(self, name: str) -> Any:
        return self._state(name, "value")

    def map(self, name: str) -> Any:
        return self._state(name, "map")

    def list(self, name: str) -> Any:
        return self._state(name, "list")

    def window(self, name: str) -> Any:
        return self._state(name, "window")

    def timer(self, name: str) -> KeyTimer:
        if name not in self._timers:
            raise self._undeclared(f"timer '{name}'", "timers", "event_timer")
        return self._timers[name]

    def forward(self, record: Record[Any, Any], child: str = "") -> None:
        if child and child not in self._operator.outputs:
            known = ", ".join(self._operator.outputs) or "none"
            raise TopologyError(
                f"operator '{self._operator.name}' forwards to child '{child}', but has {known}",
                hint=f"declare it: process(..., outputs=[{child!r}])",
            )
        given = self.given[child]
        given.records.append(record)
        given.marks.append(self.mark)
        given.late_below.append(self.late_below)

    def _state(self, name: str, kind: str) -> State:
        found = self._states.get(name)
        if found is None or type(found) is not KINDS[kind]:
            raise self._undeclared(f"{kind} '{name}'", "states", f"{kind}_state")
        return found

    def _undeclared(self, what: str, parameter: str, function: str) -> TopologyError:
        return TopologyError(
            f"operator '{self._operator.name}' asks for {what}, which it does not declare",
            hint=f'for example process(..., {parameter}=[{function}("...")])',
        )

    def rewound(self, counts: Mapping[str, int]) -> None:
        """Take back what was forwarded behind some counts."""
        for child, given in self.given.items():
            count = counts.get(child, 0)
            del given.records[count:], given.marks[count:], given.late_below[count:]

    @property
    def counts(self) -> dict[str, int]:
        """How much was forwarded to each child."""
        return {child: len(given.records) for child, given in self.given.items()}


class _Host:
    """One user's processor in one task: begun at its first record or timer."""

    def __init__(self, operator: Process, context: ProcessorContext) -> None:
        self.calls = UserFunction(operator, operator.factory, context.locator)
        self.context = _ProcessorContext(operator, context)
        self._operator = operator
        self._processor: Any = None

    def user(self, mark: int) -> Any:
        """Return the user's processor, begun."""
        if self._processor is None:
            try:
                self._processor = self._operator.factory()
                self._processor.init(self.context)
            except Exception as error:
                raise self.calls.failure(error, mark) from error
        return self._processor

    def taken(self, processor: Processor[Any]) -> Chunk:
        """Take what was forwarded; what has a child's name goes out by the side."""
        given = {child: each.chunk() for child, each in self.context.given.items()}
        self.context.given.clear()
        main = given.pop("", Chunk.empty())
        for child, chunk in given.items():
            processor.give(child, chunk)
        return main

    def close(self) -> None:
        """End the user's processor."""
        if self._processor is None:
            return
        processor, self._processor = self._processor, None
        try:
            processor.close()
        except Exception as error:
            raise self.calls.failure(error, self.context.mark) from error


def _records(chunk: Chunk) -> list[Record[Any, Any]]:
    headers = chunk.headers or [None] * len(chunk)
    return [
        Record(key, value, datetime_of(time), MappingProxyType(own) if own else _NO_HEADERS)
        for key, value, time, own in zip(
            chunk.key_list(), chunk.values, chunk.times.tolist(), headers, strict=True
        )
    ]


class ProcessProcessor(Processor[Process]):
    """Runs a processor without state."""

    def __init__(self, operator: Process, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._host = _Host(operator, context)

    def process(self, chunk: Chunk) -> Chunk:
        host, context = self._host, self._host.context
        user = host.user(int(chunk.marks[0]))
        late = [NEVER] * len(chunk) if chunk.late_below is None else chunk.late_below.tolist()
        for record, mark, below in zip(_records(chunk), chunk.marks.tolist(), late, strict=True):
            context.mark, context.late_below = mark, below
            before = context.counts
            try:
                user.process(record)
            except Exception as error:  # noqa: BLE001 - users' code raises what it likes
                host.calls.take_out(error, mark)
                context.rewound(before)
        return host.taken(self)

    def finish(self) -> Chunk:
        self._host.close()
        return self._host.taken(self)


class KeyedProcessProcessor(TimedProcessor[KeyedProcess]):
    """Runs a processor with state and timers of each key."""

    layout = ProcessLayout()

    def __init__(self, operator: KeyedProcess, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._host = _Host(operator, context)
        self._skips = operator.on_error != "fail"
        self._opened: tuple[Cells, Scope] | None = None
        self._alarms: dict[str, Alarms] = {}
        self._states: dict[str, State] = {}
        self._clocks = {timer.clock for timer in operator.timers}

    def process(self, chunk: Chunk) -> Chunk:
        cells, scope = self._open()
        host, context = self._host, self._host.context
        with writing(self.operator, "a key"):
            keys = encode_keys(chunk.key_list())
        self._prefetch(cells, keys)
        user = host.user(int(chunk.marks[0]))
        cells.now = context.now = self.event_time
        late = [NEVER] * len(chunk) if chunk.late_below is None else chunk.late_below.tolist()
        columns = (_records(chunk), keys, chunk.times.tolist(), chunk.marks.tolist(), late)
        for record, key, time, mark, below in zip(*columns, strict=True):
            scope.enter(key, time)
            context.mark, context.late_below = mark, below
            before = context.counts if self._skips else {}
            try:
                user.process(record)
            except Exception as error:  # noqa: BLE001 - users' code raises what it likes
                host.calls.take_out(error, mark)
                cells.undo()
                context.rewound(before)
            cells.keep()
        return host.taken(self)

    def advance(self, watermark: Watermark) -> Chunk:
        cells, _ = self._open()
        if "event" in self._clocks:
            self._fire("event", watermark.time, watermark.mark)
        cells.expire(watermark.time)
        return self._host.taken(self)

    def finish(self) -> Chunk:
        if "wall" in self._clocks:
            self._open()
            self._fire("wall", self.context.wall_clock, self._host.context.mark)
            self.due = self._alarms["wall"].next()
        self._host.close()
        return self._host.taken(self)

    def _fire(self, clock: str, limit: int, mark: int) -> None:
        cells, scope = self._open()
        host, context = self._host, self._host.context
        context.mark, context.late_below = mark, NEVER
        for time, key, name in self._alarms[clock].due(limit):
            user = host.user(mark)
            cells.now = context.now = (
                max(self.event_time, time) if clock == "event" else self.event_time
            )
            scope.enter(key, time if clock == "event" else self._now())
            try:
                user.fire(Fired(name, decode_key(key), datetime_of(time)))
            except Exception as error:
                raise host.calls.failure(error, mark) from error
            cells.keep()

    def _now(self) -> int:
        """Event time of what a timer of the wall clock writes."""
        return self.context.wall_clock if self.event_time == NEVER else self.event_time

    def _open(self) -> tuple[Cells, Scope]:
        if self._opened is None:
            operator = self.operator
            settled, passed = self.context.settled(operator), self.event_time
            cells = Cells(
                self.context.store(operator),
                undoable=self._skips,
                settled=settled,
                passed=passed,
            )
            scope = Scope(cells)
            self._alarms = {"event": _alarms(cells, EVENT, settled, passed)}
            self._alarms["wall"] = _alarms(cells, WALL, *self.context.settled_clock())
            self._states = {spec.name: KINDS[spec.kind](spec, scope) for spec in operator.states}
            self._host.context.declare(self._states, self._key_timers(scope))
            self._opened = cells, scope
        return self._opened

    def _key_timers(self, scope: Scope) -> dict[str, KeyTimer]:
        return {
            spec.name: KeyTimer(
                spec.name,
                self._alarms[spec.clock],
                scope,
                step_of(spec.step) if spec.clock == "event" else 1,
            )
            for spec in self.operator.timers
        }

    def _prefetch(self, cells: Cells, keys: list[bytes]) -> None:
        distinct = list(dict.fromkeys(keys))
        for spec in self.operator.states:
            if spec.kind in ("value", "list"):
                state = self._states[spec.name]
                cells.prefetch([state.entry(key) for key in distinct])


def _alarms(cells: Cells, family: bytes, settled: int, passed: int) -> Alarms:
    return Alarms(cells, family, family.upper(), settled=settled, passed=passed)


#: Operator to processor.
PROCESSES: Mapping[type[Operator], type[Processor[Any]]] = {
    KeyedProcess: KeyedProcessProcessor,
    Process: ProcessProcessor,
}
