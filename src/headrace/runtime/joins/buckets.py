"""Records of one side of a join, by stretch of time and key: one entry of the store for each.

Within a batch everything lies in memory: entries are read many at once before the first record is
handled, and written once at the end.  What ended meanwhile is never written.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.runtime.writing import writing

if TYPE_CHECKING:
    from headrace.runtime.state import StateStore
    from headrace.serdes import Serde
    from headrace.topology.operators import Operator

__all__ = ["Buckets", "Kept", "decoded", "packed", "raw_values"]

_NUMBER = struct.Struct(">Q")
_BIAS = 1 << 63
_RECORD = struct.Struct("<q?I")


@dataclass(slots=True, eq=False)
class Kept:
    """A record that waits for others."""

    time: int
    value: Any
    #: Whether another one has met it.
    met: bool = False
    #: The value as the serde writes it, once that is known.
    raw: bytes | None = None


Bucket = dict[bytes, list[Kept]]
"""Records of one stretch of time, by key."""


class Buckets:
    """The records of one side.

    Parameters
    ----------
    operator
        The join, named in errors.
    store
        Where they lie.
    family
        First byte of their entries.
    serde
        Writes their values.
    done
        Stretches with numbers below this have ended.
    """

    def __init__(
        self, operator: Operator, store: StateStore, family: bytes, serde: Serde[Any], done: int
    ) -> None:
        self._operator = operator
        self._store = store
        self._family = family
        self._serde = serde
        self._done = done
        self._held: dict[int, Bucket] = {}
        self._read: set[tuple[int, bytes]] = set()
        self._changed: dict[int, set[bytes]] = defaultdict(set)

    def load(self, places: Iterable[tuple[int, bytes]]) -> None:
        """Read the entries of places that are not known yet, many at once."""
        fresh = [place for place in dict.fromkeys(places) if place not in self._read]
        self._read.update(fresh)
        found = self._store.get_many([self._prefix(number) + key for number, key in fresh])
        present = [
            (place, entry) for place, entry in zip(fresh, found, strict=True) if entry is not None
        ]
        for (number, key), records in zip(
            (place for place, _ in present),
            decoded([entry for _, entry in present], self._serde),
            strict=True,
        ):
            self._held.setdefault(number, {})[key] = records

    def get(self, number: int, key: bytes) -> list[Kept] | None:
        """Give what a place holds that was loaded before."""
        bucket = self._held.get(number)
        return None if bucket is None else bucket.get(key)

    def add(self, number: int, key: bytes, record: Kept) -> None:
        """Add a record to a place that was loaded before."""
        bucket = self._held.get(number)
        if bucket is None:
            bucket = self._held[number] = {}
        records = bucket.get(key)
        if records is None:
            bucket[key] = [record]
        else:
            records.append(record)
        self._changed[number].add(key)

    def touch(self, number: int, key: bytes) -> None:
        """Note that a record of a place was changed."""
        self._changed[number].add(key)

    def end(self, limit: int, *, wanted: bool) -> list[tuple[int, bytes, list[Kept]]]:
        """Drop the stretches with numbers below a limit; give what they held where it is wanted."""
        if limit <= self._done:
            return []
        stored = list(self._store.range(self._prefix(self._done), self._prefix(limit)))
        self._done = limit
        if wanted:
            self.load(map(self._place, (key for key, _ in stored)))
        for key, _ in stored:
            self._store.delete(key)
        ended = sorted(number for number in self._held if number < limit)
        for number in ended:
            self._changed.pop(number, None)
        return [
            (number, key, records)
            for number in ended
            for key, records in self._held.pop(number).items()
        ]

    def flush(self) -> None:
        """Write what changed."""
        places = [(number, key) for number, keys in self._changed.items() for key in keys]
        self._changed.clear()
        entries = [self._held[number][key] for number, key in places]
        with writing(self._operator, f"its state (serde {self._serde!r})"):
            raw_values([record for records in entries for record in records], self._serde)
        self._store.put_many(
            [self._prefix(number) + key for number, key in places], list(map(packed, entries))
        )

    def _prefix(self, number: int) -> bytes:
        return self._family + _NUMBER.pack(number + _BIAS)

    def _place(self, key: bytes) -> tuple[int, bytes]:
        (number,) = _NUMBER.unpack_from(key, len(self._family))
        return number - _BIAS, key[len(self._family) + _NUMBER.size :]


def raw_values(records: list[Kept], serde: Serde[Any]) -> None:
    """Write the values of the records that have not been written yet, many at once."""
    fresh = [record for record in records if record.raw is None]
    if fresh:
        written = serde.serialize_many([record.value for record in fresh]).to_pylist()
        for record, raw in zip(fresh, written, strict=True):
            record.raw = raw


def packed(records: list[Kept]) -> bytes:
    """Write the records of an entry, whose values have been written."""
    parts: list[bytes] = []
    for record in records:
        raw = record.raw
        assert raw is not None
        parts.append(_RECORD.pack(record.time, record.met, len(raw)))
        parts.append(raw)
    return b"".join(parts)


def decoded(entries: list[bytes], serde: Serde[Any]) -> list[list[Kept]]:
    """Read entries, the values of all of them at once."""
    lists = [_unpacked(entry) for entry in entries]
    records = [record for records in lists for record in records]
    if records:
        values = serde.deserialize_many(pa.array([record.raw for record in records], pa.binary()))
        for record, value in zip(records, values, strict=True):
            record.value = value
    return lists


def _unpacked(entry: bytes) -> list[Kept]:
    records: list[Kept] = []
    at = 0
    while at < len(entry):
        time, met, size = _RECORD.unpack_from(entry, at)
        at += _RECORD.size
        records.append(Kept(time, None, met, entry[at : at + size]))
        at += size
    return records
