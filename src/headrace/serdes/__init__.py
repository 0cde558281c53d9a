"""Serdes: how values become bytes and bytes become values.

A serde works both ways, as the deserializer of a source and as the serializer of a sink::

    builder.source("lines", serdes.string)
    stream.sink("counts", serdes.json)

A source also takes a type such as a dataclass, which is read as JSON; a callable of the body, which
may return :class:`Keyed` to give a key; and :func:`with_key`, which reads the message's own key.  A
sink also takes a callable of the value, or of key and value, and needs none of them where the type
of the values is known.  Between stages and in state stores values travel by the serde that was declared
(``serde=``), or the one that follows from their type, or else as plain data.
"""

from __future__ import annotations

from headrace.serdes._documents import (
    JsonSerde,
    KeySerde,
    NothingSerde,
    NullableSerde,
    OptionalSerde,
    PlainSerde,
    PydanticSerde,
    TypedJsonSerde,
    json_of,
    nullable,
    optional,
)
from headrace.serdes.base import PickleSerde, Serde, StateSerde
from headrace.serdes.inference import (
    BytesSerde,
    FloatSerde,
    IntSerde,
    StringSerde,
    pack_int64,
    serde_for,
    unpack_int64,
)
from headrace.serdes.messages import (
    Deserializer,
    Keyed,
    PropertyColumns,
    Serializer,
    as_deserializer,
    as_serializer,
    with_key,
)
from headrace.serdes.registry import (
    AvroSerde,
    ProtobufSerde,
    RegisteredSchema,
    RegisteredSerde,
    SchemaRegistry,
    TableDeserializer,
    avro,
    protobuf,
    registered,
)

__all__ = [
    "AvroSerde",
    "BytesSerde",
    "Deserializer",
    "FloatSerde",
    "IntSerde",
    "JsonSerde",
    "KeySerde",
    "Keyed",
    "NothingSerde",
    "NullableSerde",
    "OptionalSerde",
    "PickleSerde",
    "PlainSerde",
    "PropertyColumns",
    "ProtobufSerde",
    "PydanticSerde",
    "RegisteredSchema",
    "RegisteredSerde",
    "SchemaRegistry",
    "Serde",
    "Serializer",
    "StateSerde",
    "StringSerde",
    "TableDeserializer",
    "TypedJsonSerde",
    "as_deserializer",
    "as_serializer",
    "avro",
    "bytes",
    "float",
    "int",
    "json",
    "json_of",
    "key",
    "nothing",
    "nullable",
    "optional",
    "pack_int64",
    "pickle",
    "plain",
    "protobuf",
    "registered",
    "serde_for",
    "state",
    "string",
    "unpack_int64",
    "with_key",
]

# Read as serdes.int and so on; nothing in this module needs the builtins of these names.
bytes = BytesSerde()  # noqa: A001
string = StringSerde()
int = IntSerde()  # noqa: A001
float = FloatSerde()  # noqa: A001
json = JsonSerde()
key = KeySerde()
nothing = NothingSerde()
plain = PlainSerde()
pickle = PickleSerde()
state = StateSerde()
