"""Serdes of single values: bytes, text, integers and floats."""

from __future__ import annotations

import struct
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.serdes.base import Serde, wrong_type

__all__ = ["BytesSerde", "FloatSerde", "IntSerde", "StringSerde", "pack_int64", "unpack_int64"]

_INT64 = struct.Struct("<q")
_DOUBLE = struct.Struct("<d")
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


class BytesSerde(Serde[bytes]):
    """Bytes as they are."""

    name: ClassVar[str] = "bytes"

    @property
    def hint(self) -> type[bytes]:
        return bytes

    def serialize(self, value: bytes) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise wrong_type(self, value, "bytes")
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize_many(self, values: list[bytes]) -> pa.BinaryArray:
        if set(map(type, values)) <= {bytes}:
            return pa.array(values, pa.binary())
        return super().serialize_many(values)

    def deserialize_many(self, data: pa.BinaryArray) -> list[bytes]:
        values: list[bytes] = data.to_pylist()
        return values


class StringSerde(Serde[str]):
    """Text as UTF-8."""

    name: ClassVar[str] = "string"
    is_text: ClassVar[bool] = True

    @property
    def hint(self) -> type[str]:
        return str

    def serialize(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise wrong_type(self, value, "str")
        return value.encode()

    def deserialize(self, data: bytes) -> str:
        return str(data, "utf-8")

    def serialize_many(self, values: list[str]) -> pa.BinaryArray:
        if set(map(type, values)) <= {str}:
            return pa.array(values, pa.string()).cast(pa.binary())
        return super().serialize_many(values)

    def deserialize_many(self, data: pa.BinaryArray) -> list[str]:
        values: list[str] = data.cast(pa.string()).to_pylist()
        return values

    def read_columns(self, data: pa.BinaryArray) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([data.cast(pa.string())], ["value"])


class IntSerde(Serde[int]):
    """Integers of any size: little-endian two's complement, eight bytes, or more where needed.

    Reads two's complement of any length from one byte on.
    """

    name: ClassVar[str] = "int"

    @property
    def hint(self) -> type[int]:
        return int

    def serialize(self, value: int) -> bytes:
        if not isinstance(value, int):
            raise wrong_type(self, value, "int")
        if _INT64_MIN <= value <= _INT64_MAX:
            return _INT64.pack(value)
        return value.to_bytes((value.bit_length() >> 3) + 1, "little", signed=True)

    def deserialize(self, data: bytes) -> int:
        if not data:
            message = "an int has at least one byte, got none"
            raise ValueError(message)
        return int.from_bytes(data, "little", signed=True)

    def serialize_many(self, values: list[int]) -> pa.BinaryArray:
        if set(map(type, values)) <= {int}:
            try:
                return pack_int64(np.array(values, np.int64))
            except OverflowError:
                pass
        return super().serialize_many(values)

    def deserialize_many(self, data: pa.BinaryArray) -> list[int]:
        numbers = unpack_int64(data)
        return super().deserialize_many(data) if numbers is None else numbers.tolist()

    def read_columns(self, data: pa.BinaryArray) -> pa.RecordBatch:
        numbers = unpack_int64(data)
        if numbers is None:
            return super().read_columns(data)
        return pa.RecordBatch.from_arrays([pa.array(numbers)], ["value"])


class FloatSerde(Serde[float]):
    """Floats as IEEE 754 doubles, little-endian."""

    name: ClassVar[str] = "float"

    @property
    def hint(self) -> type[float]:
        return float

    def serialize(self, value: float) -> bytes:
        if not isinstance(value, float | int):
            raise wrong_type(self, value, "float")
        return _DOUBLE.pack(value)

    def deserialize(self, data: bytes) -> float:
        number: float = _DOUBLE.unpack(data)[0]
        return number

    def serialize_many(self, values: list[float]) -> pa.BinaryArray:
        if set(map(type, values)) <= {float}:
            return _eight_bytes(np.array(values, "<f8"))
        return super().serialize_many(values)

    def deserialize_many(self, data: pa.BinaryArray) -> list[float]:
        raw = _raw_eight_bytes(data)
        return super().deserialize_many(data) if raw is None else raw.view("<f8").tolist()


def pack_int64(numbers: npt.NDArray[np.int64]) -> pa.BinaryArray:
    r"""Write numbers as :data:`headrace.serdes.int` does, without a Python object for each.

    Examples
    --------
    >>> pack_int64(np.array([1, -1]))[1].as_py()
    b'\xff\xff\xff\xff\xff\xff\xff\xff'
    """
    return _eight_bytes(numbers.astype("<i8", copy=False))


def unpack_int64(data: pa.BinaryArray) -> npt.NDArray[np.int64] | None:
    """Read what :func:`pack_int64` wrote; None if any value is null or not eight bytes long.

    Examples
    --------
    >>> unpack_int64(pack_int64(np.array([1, -1]))).tolist()
    [1, -1]
    >>> unpack_int64(pa.array([b"longer than eight"])) is None
    True
    """
    raw = _raw_eight_bytes(data)
    return None if raw is None else raw.view("<i8")


def _eight_bytes(numbers: npt.NDArray[Any]) -> pa.BinaryArray:
    if len(numbers) >= 1 << 28:
        message = f"{len(numbers):,} numbers are too many for one Arrow array"
        raise OverflowError(message)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(8)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(numbers))]
    return pa.Array.from_buffers(pa.binary(), len(numbers), buffers)


def _raw_eight_bytes(data: pa.BinaryArray) -> npt.NDArray[np.uint8] | None:
    if data.null_count or data.type != pa.binary():
        return None
    count = len(data)
    _, offset_buffer, values = data.buffers()
    if not count or offset_buffer is None:
        return np.empty(0, np.uint8)
    offsets = np.frombuffer(offset_buffer, np.int32)[data.offset : data.offset + count + 1]
    start = int(offsets[0])
    if int(offsets[-1]) - start != 8 * count or bool(np.any(np.diff(offsets) != 8)):
        return None
    return np.frombuffer(values, np.uint8, 8 * count, start)
