"""Values that may be missing: None in memory, an empty body in a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.keys import EXACT_KEY, KEYS, key_from_properties, keys_from_columns
from headrace.serdes.base import Serde
from headrace.serdes.messages import Deserializer, Keyed, PropertyColumns

__all__ = ["NullableSerde", "OptionalSerde", "TableDeserializer", "nullable", "optional"]

V = TypeVar("V")

_PRESENT = b"+"


class OptionalSerde(Serde[V | None]):
    """Another serde's form, and nothing at all for None."""

    def __init__(self, inner: Serde[V]) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return f"optional({self._inner!r})"

    @property
    def hint(self) -> Any:
        return self._inner.hint if self._inner.hint is Any else self._inner.hint | None

    def serialize(self, value: V | None) -> bytes:
        return b"" if value is None else self._inner.serialize(value)

    def deserialize(self, data: bytes) -> V | None:
        return self._inner.deserialize(data) if data else None


def optional(serde: Serde[V]) -> Serde[V | None]:
    r"""Make a serde that writes None as an empty body, which deletes in a table.

    An empty body reads as None, also where ``serde`` would read a value of its own.

    Parameters
    ----------
    serde
        Writes all other values.

    Examples
    --------
    >>> from headrace import serdes
    >>> serdes.optional(serdes.json).serialize(None), serdes.json.serialize(None)
    (b'', b'null')
    """
    return OptionalSerde(serde)


class NullableSerde(Serde[V | None]):
    """Another serde's form behind a byte, and nothing at all for None: on the way, not outside."""

    def __init__(self, inner: Serde[V]) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"{self.inner!r} or none"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NullableSerde) and self.inner == other.inner

    def __hash__(self) -> int:
        return hash((NullableSerde, self.inner))

    def serialize(self, value: V | None) -> bytes:
        return b"" if value is None else _PRESENT + self.inner.serialize(value)

    def deserialize(self, data: bytes) -> V | None:
        return self.inner.deserialize(data[1:]) if data else None

    def serialize_many(self, values: list[V | None]) -> pa.BinaryArray:
        present = [value for value in values if value is not None]
        written = self.inner.serialize_many(present)
        marked = pc.binary_join_element_wise(pa.scalar(_PRESENT, pa.binary()), written, b"")
        if len(present) == len(values):
            return marked
        missing = np.array([value is None for value in values])
        places = np.cumsum(~missing) - 1
        return marked.take(pa.array(places, mask=missing)).fill_null(b"")

    def deserialize_many(self, data: pa.BinaryArray) -> list[V | None]:
        missing = pc.equal(pc.binary_length(data), 0).to_numpy(zero_copy_only=False)
        # Not binary_slice: of values of one byte it makes buffers of negative sizes.
        bodies = pc.binary_replace_slice(data.filter(pa.array(~missing)), 0, 1, b"")
        values = iter(self.inner.deserialize_many(bodies))
        return [None if gone else next(values) for gone in missing.tolist()]


def nullable(serde: Serde[Any]) -> Serde[Any]:
    """Make a serde that can carry None besides what another one can.

    >>> from headrace import serdes
    >>> array = nullable(serdes.string).serialize_many(["", None, "a"])
    >>> nullable(serdes.string).deserialize_many(array)
    ['', None, 'a']
    """
    return serde if isinstance(serde, NullableSerde) else NullableSerde(serde)


class TableDeserializer(Deserializer[Any, Any]):
    """Another deserializer's records; a message with an empty body deletes its key."""

    def __init__(self, inner: Deserializer[Any, Any]) -> None:
        self._inner = inner
        self.key_hint = inner.key_hint
        self.value_hint = inner.value_hint if inner.value_hint is Any else inner.value_hint | None
        self.value_serde = None if inner.value_serde is None else nullable(inner.value_serde)

    def __repr__(self) -> str:
        return repr(self._inner)

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Keyed[Any, Any]:
        if body:
            return self._inner.deserialize(body, properties)
        return Keyed(key_from_properties(properties), None)

    def deserialize_many(
        self, bodies: pa.BinaryArray, properties: PropertyColumns
    ) -> tuple[list[Any] | None, list[Any]]:
        present = pc.greater(pc.binary_length(bodies), 0)
        if pc.all(present).as_py():
            return self._inner.deserialize_many(bodies, properties)
        keys: list[Any] = keys_from_columns(properties(KEYS), properties(EXACT_KEY))
        values: list[Any] = [None] * len(bodies)
        found, read = self._inner.deserialize_many(
            bodies.filter(present), lambda name: properties(name).filter(present)
        )
        places = np.flatnonzero(present.to_numpy(zero_copy_only=False)).tolist()
        for place, value in zip(places, read, strict=True):
            values[place] = value
        for place, key in zip(places, found or (), strict=False):
            keys[place] = key
        return keys, values
