"""Protobuf: values of one generated message class."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from headrace.columns.schema import Schema, column_of
from headrace.serdes.base import Serde, wrong_type

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["ProtobufSerde", "protobuf"]

M = TypeVar("M", bound="Message")

#: By the kind of the field in Python: FieldDescriptor.CPPTYPE_INT32 and so on.
_COLUMNS: dict[int, pa.DataType] = {
    1: pa.int64(),
    2: pa.int64(),
    3: pa.int64(),
    4: pa.int64(),
    5: pa.float64(),
    6: pa.float64(),
    7: pa.bool_(),
    8: pa.int64(),
    9: pa.string(),
}
#: FieldDescriptor.TYPE_BYTES, which shares its kind with text.
_BYTES = 12


class ProtobufSerde(Serde[M]):
    """The wire form of one message class; equal messages have equal bytes.

    Parameters
    ----------
    message
        The generated class.
    """

    def __init__(self, message: type[M]) -> None:
        self._message = message
        self._read = message.FromString

    def __reduce__(self) -> tuple[Any, ...]:
        return ProtobufSerde, (self._message,)

    def __repr__(self) -> str:
        return f"protobuf({self._message.DESCRIPTOR.full_name})"

    @property
    def hint(self) -> type[M]:
        return self._message

    @property
    def schema(self) -> Schema | None:
        found = ((field.name, _column(field)) for field in self._message.DESCRIPTOR.fields)
        columns = tuple((name, kind) for name, kind in found if kind is not None)
        return Schema(columns, "attributes") if columns else None

    def serialize(self, value: M) -> bytes:
        if not isinstance(value, self._message):
            raise wrong_type(self, value, self._message.__name__)
        return value.SerializeToString(deterministic=True)

    def deserialize(self, data: bytes) -> M:
        return self._read(data)

    def deserialize_many(self, data: pa.BinaryArray) -> list[M]:
        return list(map(self._read, data.to_pylist()))

    def read_columns(self, data: pa.BinaryArray) -> pa.RecordBatch:
        messages = self.deserialize_many(data)
        fields = self._message.DESCRIPTOR.fields
        known = [(field, kind) for field in fields if (kind := _column(field)) is not None]
        arrays = [column_of(_values(messages, field), kind) for field, kind in known]
        return pa.RecordBatch.from_arrays(arrays, [field.name for field, _ in known])


def _column(field: Any) -> pa.DataType | None:
    """Give the type of a field's column; None for messages and maps."""
    kind = pa.binary() if field.type == _BYTES else _COLUMNS.get(field.cpp_type)
    return pa.list_(kind) if kind is not None and field.is_repeated else kind


def _values(messages: list[Any], field: Any) -> list[Any]:
    """Give a field of many messages; None where one can be absent and is."""
    name = field.name
    values = map(attrgetter(name), messages)
    if field.is_repeated:
        return list(map(list, values))
    if not field.has_presence:
        return list(values)
    return [
        value if message.HasField(name) else None
        for message, value in zip(messages, values, strict=True)
    ]


def protobuf(message: type[M]) -> Serde[M]:
    r"""Make a serde for the messages of one generated class.

    Needs the extra ``headrace[protobuf]``.

    Parameters
    ----------
    message
        The class that ``protoc`` made.

    Examples
    --------
    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> protobuf(StringValue).serialize(StringValue(value="tea"))
    b'\n\x03tea'
    """
    return ProtobufSerde(message)
