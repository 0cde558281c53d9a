"""Entries of one operator's store, by record key and declared state; each may have an end.

=========  =======================================================================
family     what lies there
=========  =======================================================================
``s``      states: length of the record key (u32), record key, length of the name
           (u8), name, then what the kind of state adds
``x``      ends of entries with a time to live: time (u64), key of the entry
``e``      timers of event time: time (u64), then as ``s``
``w``      timers of the wall clock: the same
``X E W``  as ``x``, ``e`` and ``w``, of times that had passed when they were set
=========  =======================================================================
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.keys import decode_key, encode_key
from headrace.runtime.chunk import NEVER
from headrace.runtime.state.interface import StateStore, Timers
from headrace.topology.operators.process import ttl_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.topology.low_level import StateSpec


# Times of the engine, in ms since 1970, and of the users' programs.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def datetime_of(time: int) -> datetime:
    """Return ms since 1970 as a time in UTC.

    >>> datetime_of(-1).isoformat()
    '1969-12-31T23:59:59.999000+00:00'
    """
    return _EPOCH + timedelta(milliseconds=time)


def milliseconds(time: datetime) -> int:
    """Return a time in ms since 1970; one without a zone is in UTC.

    >>> milliseconds(datetime(1970, 1, 2)), milliseconds(datetime_of(-1))
    (86400000, -1)
    """
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH) // _MS


def rounded_up(time: int, step: int) -> int:
    """Return the first multiple of a step that is not before a time.

    >>> rounded_up(1, 10), rounded_up(-1, 10), rounded_up(20, 10)
    (10, 0, 20)
    """
    return -(-time // step) * step


EVENT, WALL = b"e", b"w"
STATE, _EXPIRY = b"s", b"x"
_LENGTH = struct.Struct(">I")
_END = struct.Struct(">q")
_TIME_BYTES = 8


def state_prefix(key: bytes, name: str) -> bytes:
    r"""Return what the entries of a state of one record key begin with, but for the family.

    >>> state_prefix(b"k", "last")
    b'\x00\x00\x00\x01k\x04last'
    """
    return key_part(key) + name_part(name)


def key_part(key: bytes) -> bytes:
    """Return the part of a prefix that names the record key."""
    return _LENGTH.pack(len(key)) + key


def name_part(name: str) -> bytes:
    """Return the part of a prefix that names the state."""
    return bytes([len(name)]) + name.encode()


def key_of_entry(entry: bytes) -> bytes:
    """Return the record key that an entry belongs to.

    >>> key_of_entry(b"s" + state_prefix(b"k", "last") + b"more")
    b'k'
    """
    family = entry[:1]
    at = 1 if family == STATE else 1 + _TIME_BYTES
    if family.lower() == _EXPIRY:
        at += 1
    (length,) = _LENGTH.unpack_from(entry, at)
    return entry[at + _LENGTH.size : at + _LENGTH.size + length]


class Cells:
    """Reads and writes entries of states; remembers what one record changed.

    Parameters
    ----------
    store
        The operator's store.
    undoable
        Whether :meth:`undo` may be called.
    settled, passed
        Event time up to which all ends have been met, and how far it had come.
    """

    def __init__(
        self, store: StateStore, *, undoable: bool, settled: int = NEVER, passed: int = NEVER
    ) -> None:
        self.store = store
        self._undoable = undoable
        self._before: dict[bytes, bytes | None] = {}
        self._ends = Timers(self, _EXPIRY, settled=settled, passed=passed, early=_EXPIRY.upper())
        #: Event time as the entries see it, ms: those that end at or before it are gone.
        self.now = NEVER

    def prefetch(self, entries: list[bytes]) -> None:
        """Look up many entries at once."""
        self.store.get_many([STATE + entry for entry in entries])

    def get(self, entry: bytes, *, ends: bool) -> bytes | None:
        """Return what lies in an entry."""
        found = self.store.get(STATE + entry)
        return self._living(found) if ends and found is not None else found

    def set(self, entry: bytes, value: bytes, end: int | None) -> None:
        """Fill an entry; ``end`` is when it is gone, None for an entry that stays."""
        if end is None:
            self.put(STATE + entry, value)
            return
        old = self._end(entry)
        if old != end:
            if old is not None:
                self._ends.clear(old, STATE + entry)
            self._ends.set(end, STATE + entry)
        self.put(STATE + entry, _END.pack(end) + value)

    def end(self, entry: bytes) -> int | None:
        """Return when an entry ends that is there."""
        return self._end(entry)

    def drop(self, entry: bytes, *, ends: bool) -> None:
        """Empty an entry."""
        old = self._end(entry) if ends else None
        if old is not None:
            self._ends.clear(old, STATE + entry)
        self.delete(STATE + entry)

    def within(self, start: bytes, stop: bytes, *, ends: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries from ``start`` to before ``stop``, in order of their keys."""
        for key, found in list(self.range(STATE + start, STATE + stop)):
            value = self._living(found) if ends else found
            if value is not None:
                yield key[len(STATE) :], value

    def expire(self, time: int) -> None:
        """Empty the entries that end up to a time."""
        for _, key in self._ends.due(time):
            self.delete(key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set an entry of any family."""
        self._note(key)
        self.store.put(key, value)

    def delete(self, key: bytes) -> None:
        """Delete an entry of any family."""
        self._note(key)
        self.store.delete(key)

    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return entries of one family."""
        return self.store.range(start, stop)

    def keep(self) -> None:
        """Make what was changed since the last call final."""
        self._before.clear()

    def undo(self) -> None:
        """Take back what was changed since :meth:`keep`."""
        for key, value in self._before.items():
            if value is None:
                self.store.delete(key)
            else:
                self.store.put(key, value)
        self._before.clear()

    def _note(self, key: bytes) -> None:
        if self._undoable and key not in self._before:
            self._before[key] = self.store.get(key)

    def _end(self, entry: bytes) -> int | None:
        found = self.store.get(STATE + entry)
        return None if found is None else int(_END.unpack_from(found)[0])

    def _living(self, found: bytes) -> bytes | None:
        return found[_END.size :] if _END.unpack_from(found)[0] > self.now else None


# The states of the record key that is handled, as a user's processor sees them.

_NUMBER = struct.Struct(">Q")
_BIAS = 1 << 63


class Scope:
    """What is handled: a record of a key, or a timer of one."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells
        #: The key, as prefixes of entries begin with it.
        self.head = b""
        #: Time of the record or timer, ms.
        self.time = 0

    def enter(self, key: bytes, time: int) -> None:
        """Handle a record or timer of a key, in canonical bytes."""
        self.head = key_part(key)
        self.time = time


class State:
    """One declared state; a class for each kind follows.

    Parameters
    ----------
    spec
        What was declared.
    scope
        Whose state it is.
    """

    def __init__(self, spec: StateSpec, scope: Scope) -> None:
        self._spec = spec
        self._scope = scope
        self._cells = scope.cells
        self._ends = spec.ttl is not None
        self._tail = name_part(spec.name)

    def entry(self, key: bytes) -> bytes:
        """Return the name of the first entry of a record key."""
        return key_part(key) + self._tail

    def _own(self, more: bytes = b"") -> bytes:
        return self._scope.head + self._tail + more

    def _end(self) -> int | None:
        ttl = self._spec.ttl
        if ttl is None:
            return None
        return rounded_up(self._scope.time + milliseconds_of(ttl), ttl_step(ttl))

    def _read(self, more: bytes = b"") -> Any:
        found = self._cells.get(self._own(more), ends=self._ends)
        return None if found is None else self._spec.serde.deserialize(found)

    def _write(self, value: Any, more: bytes = b"") -> None:
        self._cells.set(self._own(more), self._spec.serde.serialize(value), self._end())

    def _drop(self, more: bytes = b"") -> None:
        self._cells.drop(self._own(more), ends=self._ends)

    def _walk(self, start: bytes = b"", stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        prefix = self._own()
        # A name is ASCII, so its last byte can grow by one.
        end = prefix[:-1] + bytes([prefix[-1] + 1]) if stop is None else prefix + stop
        for key, value in self._cells.within(prefix + start, end, ends=self._ends):
            yield key[len(prefix) :], value

    def clear(self) -> None:
        """Delete all that is there for the key."""
        for more, _ in list(self._walk()):
            self._drop(more)


class OneValue(State):
    """A value."""

    def get(self) -> Any:
        """Return the value."""
        return self._read()

    def put(self, value: Any) -> None:
        """Set the value."""
        self._write(value)

    def delete(self) -> None:
        """Delete the value."""
        self._drop()


class Mapped(State):
    """A map."""

    def get(self, key: Any) -> Any:
        """Return the value of a key."""
        return self._read(encode_key(key))

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        self._write(value, encode_key(key))

    def delete(self, key: Any) -> None:
        """Delete a key."""
        self._drop(encode_key(key))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all keys with their values."""
        for more, value in self._walk():
            yield decode_key(more), self._spec.serde.deserialize(value)


class Listed(State):
    """A list: its items by number, and the next number in an entry that outlives them."""

    def append(self, value: Any) -> None:
        """Add a value at the end."""
        found = self._cells.get(self._own(), ends=self._ends)
        number = 0 if found is None else _NUMBER.unpack(found)[0]
        self._write(value, _NUMBER.pack(number))
        end = self._end()
        if end is not None:
            end = max(end, self._cells.end(self._own()) or end)
        self._cells.set(self._own(), _NUMBER.pack(number + 1), end)

    def __iter__(self) -> Iterator[Any]:
        for more, value in self._walk():
            if more:
                yield self._spec.serde.deserialize(value)


class ValuesByTime(State):
    """Values by time."""

    def get(self, time: datetime) -> Any:
        """Return the value of a time."""
        return self._read(_at(time))

    def put(self, time: datetime, value: Any) -> None:
        """Set the value of a time."""
        self._write(value, _at(time))

    def delete(self, time: datetime) -> None:
        """Delete the value of a time."""
        self._drop(_at(time))

    def between(self, start: datetime, stop: datetime) -> Iterator[tuple[datetime, Any]]:
        """Return the values from a time to before another."""
        return self._values(_at(start), _at(stop))

    def before(self, time: datetime) -> Iterator[tuple[datetime, Any]]:
        """Return the values before a time."""
        return self._values(b"", _at(time))

    def _values(self, start: bytes, stop: bytes) -> Iterator[tuple[datetime, Any]]:
        for more, value in self._walk(start, stop):
            time = _NUMBER.unpack(more)[0] - _BIAS
            yield datetime_of(time), self._spec.serde.deserialize(value)


def _at(time: datetime) -> bytes:
    return _NUMBER.pack(milliseconds(time) + _BIAS)


def milliseconds_of(ttl: Any) -> int:
    """Return a time to live in whole ms."""
    return int(ttl.total_seconds() * 1000)


KINDS: dict[str, type[State]] = {
    "value": OneValue,
    "map": Mapped,
    "list": Listed,
    "window": ValuesByTime,
}
