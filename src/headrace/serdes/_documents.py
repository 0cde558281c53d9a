"""Serdes of structured values: JSON, plain data, typed JSON, pickles."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from headrace.encoding import decode, encode_canonical, encode_exact
from headrace.keys import decode_keys, encode_keys
from headrace.serdes.base import Serde

__all__ = [
    "JsonSerde",
    "KeySerde",
    "NothingSerde",
    "PickleSerde",
    "PlainSerde",
    "TypedJsonSerde",
    "json_of",
]

T = TypeVar("T")


class JsonSerde(Serde[Any]):
    """JSON: integers of any size stay exact; NaN and infinities become null, as JSON has none.

    What JSON has no type for is written as the nearest one: tuples as arrays, dates and decimals
    as strings, dataclasses as objects.  It reads back as that nearest type.
    """

    name: ClassVar[str] = "json"

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder()

    def __reduce__(self) -> tuple[type[JsonSerde], tuple[()]]:
        return JsonSerde, ()

    def serialize(self, value: Any) -> bytes:
        return self._encoder.encode(value)

    def deserialize(self, data: bytes) -> Any:
        return self._decoder.decode(data)

    def serialize_many(self, values: list[Any]) -> pa.BinaryArray:
        if set(map(type, values)) == {int}:
            try:
                numbers = pa.array(np.array(values, np.int64))
                return numbers.cast(pa.string()).cast(pa.binary())
            except OverflowError:
                pass
        return pa.array(list(map(self._encoder.encode, values)), pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[Any]:
        return list(map(self._decoder.decode, data.to_pylist()))


class TypedJsonSerde(Serde[T]):
    """JSON of one type: a dataclass, named tuple, TypedDict, Struct, enum, or a container of such.

    Parameters
    ----------
    type
        The type; what is read is checked against it.
    """

    def __init__(self, type: type[T]) -> None:  # noqa: A002 - the name that callers read
        self._type = type
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(type)

    def __reduce__(self) -> tuple[Any, ...]:
        return TypedJsonSerde, (self._type,)

    def __repr__(self) -> str:
        return f"json_of({getattr(self._type, '__qualname__', self._type)})"

    @property
    def hint(self) -> type[T]:
        return self._type

    def serialize(self, value: T) -> bytes:
        return self._encoder.encode(value)

    def deserialize(self, data: bytes) -> T:
        return self._decoder.decode(data)


def json_of(type: type[T]) -> Serde[T]:  # noqa: A002 - the name that callers read
    r"""Make a serde that writes values of one type as JSON and checks what it reads.

    Parameters
    ----------
    type
        A dataclass, named tuple, TypedDict, msgspec Struct, enum, or a container of such.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Order:
    ...     item: str
    ...     price: int
    >>> json_of(Order).serialize(Order("tea", 3))
    b'{"item":"tea","price":3}'
    >>> json_of(Order).deserialize(b'{"item":"tea","price":3}')
    Order(item='tea', price=3)
    """
    return TypedJsonSerde(type)


class PlainSerde(Serde[Any]):
    """Plain data as it is, types included: the default where nothing else is known.

    None, bool, int, float, str, bytes, Decimal, date, time, datetime, timedelta, UUID, and tuples,
    lists, dicts and sets of these, in the exact form of :mod:`headrace.encoding`.
    """

    name: ClassVar[str] = "plain"

    def serialize(self, value: Any) -> bytes:
        return encode_exact(value)

    def deserialize(self, data: bytes) -> Any:
        return decode(data)

    def serialize_many(self, values: list[Any]) -> pa.BinaryArray:
        # Both forms write text alike, and keys know how to write many at once.
        texts = set(map(type, values)) == {str}
        encoded = encode_keys(values) if texts else list(map(encode_exact, values))
        return pa.array(encoded, pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[Any]:
        return decode_keys(data.to_pylist())


class KeySerde(Serde[Any]):
    """Keys: plain data in the canonical form (see :mod:`headrace.keys`)."""

    name: ClassVar[str] = "key"

    def serialize(self, value: Any) -> bytes:
        return encode_canonical(value)

    def deserialize(self, data: bytes) -> Any:
        return decode(data)

    def serialize_many(self, values: list[Any]) -> pa.BinaryArray:
        return pa.array(encode_keys(values), pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[Any]:
        return decode_keys(data.to_pylist())


class NothingSerde(Serde[Any]):
    """No bytes at all, read as None: for values that nobody looks at."""

    name: ClassVar[str] = "nothing"

    def serialize(self, value: Any) -> bytes:  # noqa: ARG002
        return b""

    def deserialize(self, data: bytes) -> Any:  # noqa: ARG002
        return None

    def serialize_many(self, values: list[Any]) -> pa.BinaryArray:
        return pa.array([b""]).take(pa.array(np.zeros(len(values), np.int64)))

    def deserialize_many(self, data: pa.BinaryArray) -> list[Any]:
        return [None] * len(data)


class PickleSerde(Serde[Any]):
    """Pickles: any Python object, never chosen by default.

    Reading a pickle runs code of whoever wrote it, so use it only for topics that nobody else
    writes to; and a renamed class makes what is stored unreadable.
    """

    name: ClassVar[str] = "pickle"

    @property
    def hint(self) -> type[object]:
        return object

    def serialize(self, value: Any) -> bytes:
        return pickle.dumps(value, protocol=5)

    def deserialize(self, data: bytes) -> Any:
        return pickle.loads(data)  # noqa: S301 - chosen by name, with the warning above
