"""Messages of Protobuf as schemas of Connect.

==============================  ==========================================================
Protobuf                        Connect
==============================  ==========================================================
int32, sint32, sfixed32         int32
uint32, fixed32, 64-bit kinds   int64
float, double, bool             float, double, boolean
string, bytes                   string, bytes
enum                            string: the name of the value
message, group                  optional struct
repeated, map                   array, map
field of a oneof, ``optional``  optional
wrapper (``Int32Value`` ...)    optional value of that type
``Timestamp``                   optional timestamp
==============================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    Field,
    Schema,
    Type,
    array,
    mapping,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message


TIMESTAMP_MESSAGE = "google.protobuf.Timestamp"

#: Messages that hold one value, so that it may be missing.
WRAPPERS: Mapping[str, Schema] = {
    f"google.protobuf.{kind}Value": schema
    for kind, schema in {
        "Bool": BOOLEAN,
        "Bytes": BYTES,
        "Double": FLOAT64,
        "Float": FLOAT32,
        "Int32": INT32,
        "Int64": INT64,
        "String": STRING,
        "UInt32": INT64,
        "UInt64": INT64,
    }.items()
}

_SCALARS: Mapping[int, Schema] = {
    FieldDescriptor.TYPE_BOOL: BOOLEAN,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_DOUBLE: FLOAT64,
    FieldDescriptor.TYPE_ENUM: STRING,
    FieldDescriptor.TYPE_FIXED32: INT64,
    FieldDescriptor.TYPE_FIXED64: INT64,
    FieldDescriptor.TYPE_FLOAT: FLOAT32,
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_INT64: INT64,
    FieldDescriptor.TYPE_SFIXED32: INT32,
    FieldDescriptor.TYPE_SFIXED64: INT64,
    FieldDescriptor.TYPE_SINT32: INT32,
    FieldDescriptor.TYPE_SINT64: INT64,
    FieldDescriptor.TYPE_STRING: STRING,
    FieldDescriptor.TYPE_UINT32: INT64,
    FieldDescriptor.TYPE_UINT64: INT64,
}


def is_map(field: Any) -> bool:
    """Return whether a repeated field is a map."""
    entry = field.message_type
    return entry is not None and bool(entry.GetOptions().map_entry)


def schema_from_protobuf(message: type[Message]) -> Schema | None:
    """Return the schema of a message's class; ``None`` for one that contains itself.

    >>> from google.protobuf.source_context_pb2 import SourceContext
    >>> print(schema_from_protobuf(SourceContext))
    struct google.protobuf.SourceContext {file_name: string}
    """
    try:
        return _message(message.DESCRIPTOR, ())
    except RecursionError:
        return None


def _message(message: Any, around: tuple[str, ...]) -> Schema:
    name = message.full_name
    if name in around:
        raise RecursionError
    if name == TIMESTAMP_MESSAGE:
        return TIMESTAMP
    if name in WRAPPERS:
        return WRAPPERS[name]
    fields = tuple(Field(one.name, _field(one, (*around, name))) for one in message.fields)
    return Schema(Type.STRUCT, name=name, fields=fields)


def _field(field: Any, around: tuple[str, ...]) -> Schema:
    if is_map(field):
        entry = field.message_type.fields_by_name
        return mapping(_value(entry["key"], around), _value(entry["value"], around))
    made = _value(field, around)
    if field.is_repeated:
        return array(made)
    return made.as_optional() if field.has_presence else made


def _value(field: Any, around: tuple[str, ...]) -> Schema:
    if field.message_type is not None:
        return _message(field.message_type, around)
    return _SCALARS[field.type]
