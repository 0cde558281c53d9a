"""How aggregates that keep records write them: each behind its mark."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace.serdes import Serde

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EntriesSerde"]

V = TypeVar("V")

_HEAD = struct.Struct("<qI")


class EntriesSerde(Serde[list[tuple[int, V]]]):
    """Numbered values: for each its number (i64), its size (u32) and its bytes.

    Parameters
    ----------
    values
        Writes the values.
    """

    def __init__(self, values: Serde[V]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return f"entries of {self._values!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntriesSerde) and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))

    def serialize(self, value: list[tuple[int, V]]) -> bytes:
        """Write one list."""
        parts: list[bytes] = []
        for number, item in value:
            body = self._values.serialize(item)
            parts += (_HEAD.pack(number, len(body)), body)
        return b"".join(parts)

    def deserialize(self, data: bytes) -> list[tuple[int, V]]:
        """Read one list."""
        numbers, bodies = _split(data)
        return list(zip(numbers, map(self._values.deserialize, bodies), strict=True))

    def serialize_many(self, values: list[list[tuple[int, V]]]) -> pa.BinaryArray:
        """Write many lists, their values all at once."""
        bodies = self._values.serialize_many([item for entries in values for _, item in entries])
        return pa.array(_joined(values, bodies.to_pylist()), pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[list[tuple[int, V]]]:
        """Read many lists, their values all at once."""
        lists = [_split(each) for each in data.to_pylist()]
        bodies = [body for _, found in lists for body in found]
        items = iter(self._values.deserialize_many(pa.array(bodies, pa.binary())))
        return [[(number, next(items)) for number in numbers] for numbers, _ in lists]


def _joined(lists: Sequence[Sequence[tuple[int, Any]]], bodies: list[bytes]) -> list[bytes]:
    joined: list[bytes] = []
    at = 0
    for entries in lists:
        parts: list[bytes] = []
        for number, _ in entries:
            body = bodies[at]
            at += 1
            parts += (_HEAD.pack(number, len(body)), body)
        joined.append(b"".join(parts))
    return joined


def _split(data: bytes) -> tuple[list[int], list[bytes]]:
    numbers: list[int] = []
    bodies: list[bytes] = []
    at = 0
    while at < len(data):
        number, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + size > len(data):
            message = f"an entry of {size} bytes is cut off after {len(data) - at}"
            raise ValueError(message)
        numbers.append(number)
        bodies.append(data[at : at + size])
        at += size
    return numbers, bodies
