"""Serdes from types: what annotations say about a value, and which serde follows."""

from __future__ import annotations

import functools
import operator
import struct
import types
import typing
from collections import abc
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columns.schema import has_fields
from headrace.encoding import PLAIN_TYPES
from headrace.serdes._documents import JsonSerde, PlainSerde, classes_of, json_of, nullable
from headrace.serdes.base import Serde, wrong_type

# Serdes of single values: bytes, text, integers and floats.

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

    It reads two's complement of any length from one byte on.
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
            return pack_numbers(np.array(values, "<f8"))
        return super().serialize_many(values)

    def deserialize_many(self, data: pa.BinaryArray) -> list[float]:
        numbers = unpack_numbers(data, "<f8")
        return super().deserialize_many(data) if numbers is None else numbers.tolist()


def pack_int64(numbers: npt.NDArray[np.int64]) -> pa.BinaryArray:
    r"""Write numbers as :data:`headrace.serdes.int` does, without a Python object for each.

    Examples
    --------
    >>> pack_int64(np.array([1, -1]))[1].as_py()
    b'\xff\xff\xff\xff\xff\xff\xff\xff'
    """
    return pack_numbers(numbers.astype("<i8", copy=False))


def unpack_int64(data: pa.BinaryArray) -> npt.NDArray[np.int64] | None:
    """Read what :func:`pack_int64` wrote; None if any value is null or not eight bytes long.

    Examples
    --------
    >>> unpack_int64(pack_int64(np.array([1, -1]))).tolist()
    [1, -1]
    >>> unpack_int64(pa.array([b"longer than eight"])) is None
    True
    """
    return unpack_numbers(data, "<i8")


def pack_numbers(numbers: npt.NDArray[Any]) -> pa.BinaryArray:
    """Make a column of the bytes of numbers, each as they lie in memory."""
    size = numbers.itemsize
    if len(numbers) * size >= 1 << 31:
        message = f"{len(numbers):,} numbers are too many for one Arrow array"
        raise OverflowError(message)
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(size)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(numbers))]
    return pa.Array.from_buffers(pa.binary(), len(numbers), buffers)


def unpack_numbers(data: pa.BinaryArray, dtype: npt.DTypeLike) -> npt.NDArray[Any] | None:
    r"""Read what :func:`pack_numbers` wrote; None if any value is null or of another length.

    Examples
    --------
    >>> unpack_numbers(pa.array([b"\0\1", b"\1\0"]), ">i2").tolist()
    [1, 256]
    """
    if data.null_count or data.type != pa.binary():
        return None
    count, size = len(data), np.dtype(dtype).itemsize
    _, offset_buffer, values = data.buffers()
    if not count or offset_buffer is None:
        return np.empty(0, dtype)
    offsets = np.frombuffer(offset_buffer, np.int32)[data.offset : data.offset + count + 1]
    start = int(offsets[0])
    if int(offsets[-1]) - start != size * count or bool(np.any(np.diff(offsets) != size)):
        return None
    return np.frombuffer(values, dtype, count, start)


_PLAIN: Final = PlainSerde()
_JSON: Final = JsonSerde()
_BY_TYPE: Final[dict[Any, Serde[Any]]] = {
    bytes: BytesSerde(),
    str: StringSerde(),
    int: IntSerde(),
    float: FloatSerde(),
}
_UNIONS = (typing.Union, types.UnionType)
#: Annotations that leave the type open.
_OPEN_MODULES = frozenset({"typing", "typing_extensions", "collections.abc"})


def serde_for(hint: Any) -> Serde[Any] | None:
    """Choose the serde for a type; None if the type is known but has no serde.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class Word(NamedTuple):
    ...     text: str
    >>> serde_for(str), serde_for(dict[str, int]), serde_for(Any), serde_for(Word)
    (string, plain, plain, json_of(Word))
    >>> serde_for(range) is None
    True
    """
    return plain_serde_for(hint) or document_serde_for(hint)


def plain_serde_for(hint: Any) -> Serde[Any] | None:
    """Choose the serde for a type of plain data, or for one that is open; None for others."""
    try:
        known = _BY_TYPE.get(hint)
    except TypeError:
        known = None
    if known is not None:
        return known
    return _PLAIN if _is_plain(hint) else None


def document_serde_for(hint: Any) -> Serde[Any] | None:
    """Choose the serde for a type that JSON is read back as, field by field; None for others.

    Such types are dataclasses, named tuples, TypedDicts, msgspec Structs, pydantic models, enums
    and containers of such, if all that they hold is of known types.

    Examples
    --------
    >>> from typing import TypedDict
    >>> class Order(TypedDict):
    ...     price: int
    >>> document_serde_for(Order), document_serde_for(Order | None), document_serde_for(int)
    (json_of(Order), json_of(Order) or none, None)
    """
    present = without_none(hint)
    if present is not hint:
        inner = document_serde_for(present)
        return None if inner is None else nullable(inner)
    if isinstance(hint, typing.NewType):
        return document_serde_for(hint.__supertype__)
    if not (_is_pydantic(hint) or _is_made_of_documents(hint)):
        return None
    try:
        return json_of(hint)
    except (NameError, TypeError):
        return None


def _is_made_of_documents(hint: Any) -> bool:
    kinds = set(classes_of(hint)) - {types.UnionType}
    documents = {kind for kind in kinds if has_fields(kind) or issubclass(kind, Enum)}
    known = all(map(_is_plain_class, kinds - documents))
    return bool(documents) and known and not any(map(_is_pydantic, documents))


def _is_pydantic(hint: Any) -> bool:
    return isinstance(hint, type) and hasattr(hint, "__pydantic_fields__")


def topic_serde_for(hint: Any) -> Serde[Any] | None:
    """Choose the serde in which values of a type go to a topic that others read.

    Text and bytes go as they are, all else as JSON; None if the type is open or has no serde.

    Examples
    --------
    >>> topic_serde_for(str), topic_serde_for(int), topic_serde_for(Any)
    (string, json, None)
    """
    present = without_none(hint)
    if _is_open(present) or getattr(present, "_is_protocol", False):
        return None
    if present in (str, bytes):
        return _BY_TYPE[present]
    return document_serde_for(present) or (plain_serde_for(present) and _JSON)


def _is_open(hint: Any) -> bool:
    return hint in (None, Any, object) or isinstance(hint, TypeVar | str)


def _is_plain(hint: Any) -> bool:
    if _is_open(hint):
        return True
    if isinstance(hint, typing.NewType):
        return _is_plain(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return True
    if origin is typing.Annotated:
        return _is_plain(arguments[0])
    if origin in _UNIONS or origin in PLAIN_TYPES:
        return all(_is_plain(argument) for argument in arguments if argument is not Ellipsis)
    return _is_plain_class(hint if origin is None else origin)


def _is_plain_class(kind: Any) -> bool:
    if not isinstance(kind, type) or kind in PLAIN_TYPES:
        return True
    if typing.is_typeddict(kind):
        return all(map(_is_plain, typing.get_type_hints(kind).values()))
    return kind.__module__ in _OPEN_MODULES or bool(getattr(kind, "_is_protocol", False))


def result_hint(function: Callable[..., Any], names: Mapping[str, Any] | None = None) -> Any:
    """Return the type that a callable's annotations promise, ``Any`` where they say nothing.

    Parameters
    ----------
    function
        A function, a class, a partial, or an object that can be called.
    names
        Local names that the annotations may use besides the module's.

    Examples
    --------
    >>> def length(word: str) -> int:
    ...     return len(word)
    >>> result_hint(length), result_hint(str), result_hint(lambda word: word)
    (<class 'int'>, <class 'str'>, typing.Any)
    """
    if isinstance(function, type):
        return function
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - the method itself
    try:
        hints = typing.get_type_hints(function, localns=dict(names or {}))
    except Exception:  # noqa: BLE001 - annotations are the user's code: any may fail, none matters
        return Any
    return hints.get("return", Any)


def type_arguments(hint: Any, kind: type) -> tuple[Any, ...] | None:
    """Return the arguments of ``kind[...]``, none for ``kind`` alone, None for another type."""
    if hint is kind:
        return ()
    return typing.get_args(hint) if typing.get_origin(hint) is kind else None


def without_none(hint: Any) -> Any:
    """Return a type without the None that it may also be."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) not in _UNIONS or types.NoneType not in arguments:
        return hint
    present = (argument for argument in arguments if argument is not types.NoneType)
    return functools.reduce(operator.or_, present)


def item_hint(hint: Any) -> Any:
    """Return the type of what an iterable of this type yields.

    Examples
    --------
    >>> item_hint(list[int]), item_hint(dict[str, int]), item_hint(Any)
    (<class 'int'>, <class 'str'>, typing.Any)
    """
    if hint is str:
        return str
    if hint is bytes:
        return int
    hint = without_none(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if not arguments or not isinstance(origin, type) or not issubclass(origin, abc.Iterable):
        return Any
    if origin is tuple and Ellipsis not in arguments:
        return functools.reduce(operator.or_, arguments)
    return arguments[0]


def pair_hints(hint: Any) -> tuple[Any, Any]:
    """Return the types of key and value of a pair.

    Examples
    --------
    >>> pair_hints(tuple[str, int]), pair_hints(Any)
    ((<class 'str'>, <class 'int'>), (typing.Any, typing.Any))
    """
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and Ellipsis not in arguments:
        return arguments[0], arguments[1]
    return Any, Any


def hint_name(hint: Any) -> str:
    """Return the name of a type as a reader knows it.

    Examples
    --------
    >>> hint_name(int), hint_name(list[int]), hint_name(Any)
    ('int', 'list[int]', 'unknown')
    """
    if hint is Any:
        return "unknown"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__qualname__.rpartition("<locals>.")[2]
    return str(hint).replace("typing.", "")
