"""The states of the record key that is handled, as a user's processor sees them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from headrace.keys import decode_key, encode_key
from headrace.runtime.low_level.cells import (
    datetime_of,
    key_part,
    milliseconds,
    name_part,
    rounded_up,
)
from headrace.topology.operators.process import ttl_step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from headrace.runtime.low_level.cells import Cells
    from headrace.topology.low_level import StateSpec

__all__ = ["KINDS", "Scope", "State"]

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
        """Name the first entry of a record key."""
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
        """Give the value."""
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
        """Give the value of a key."""
        return self._read(encode_key(key))

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        self._write(value, encode_key(key))

    def delete(self, key: Any) -> None:
        """Delete a key."""
        self._drop(encode_key(key))

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Give all keys with their values."""
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
        """Give the value of a time."""
        return self._read(_at(time))

    def put(self, time: datetime, value: Any) -> None:
        """Set the value of a time."""
        self._write(value, _at(time))

    def delete(self, time: datetime) -> None:
        """Delete the value of a time."""
        self._drop(_at(time))

    def between(self, start: datetime, stop: datetime) -> Iterator[tuple[datetime, Any]]:
        """Give the values from a time to before another."""
        return self._values(_at(start), _at(stop))

    def before(self, time: datetime) -> Iterator[tuple[datetime, Any]]:
        """Give the values before a time."""
        return self._values(b"", _at(time))

    def _values(self, start: bytes, stop: bytes) -> Iterator[tuple[datetime, Any]]:
        for more, value in self._walk(start, stop):
            time = _NUMBER.unpack(more)[0] - _BIAS
            yield datetime_of(time), self._spec.serde.deserialize(value)


def _at(time: datetime) -> bytes:
    return _NUMBER.pack(milliseconds(time) + _BIAS)


def milliseconds_of(ttl: Any) -> int:
    """Give a time to live in whole ms."""
    return int(ttl.total_seconds() * 1000)


KINDS: dict[str, type[State]] = {
    "value": OneValue,
    "map": Mapped,
    "list": Listed,
    "window": ValuesByTime,
}
