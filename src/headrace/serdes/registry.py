"""RocketMQ's schema registry: schemas by subject, and the bodies that its Java serdes write.

A body begins with the id of the record that the registry keeps of the schema: eight bytes, the
high ones first; before Avro data they stand as Avro ``bytes``, with their length.  Java's serdes
from before 2023 write sixteen bytes, the last eight zero; these are read, too.

The schema is fetched once, where the pipeline is built: workers never ask the registry.
"""

from __future__ import annotations

import io
import json
import struct
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.schema import Schema, arrow_type, column_of
from headrace.errors import SerializationError
from headrace.keys import EXACT_KEY, KEYS, key_from_properties, keys_from_columns
from headrace.serdes._documents import JsonSerde, nullable
from headrace.serdes.base import Serde, wrong_type
from headrace.serdes.messages import Deserializer, KeyDeserializer, Keyed, PropertyColumns

if TYPE_CHECKING:
    from google.protobuf.message import Message


# Avro: values as dicts, by a schema that is given.

AvroSchema = Mapping[str, Any] | list[Any] | str

#: What values are in Python, by the words for types and logical types in a schema.
AVRO_TYPES: Final[Mapping[str, type]] = {
    "array": list,
    "boolean": bool,
    "bytes": bytes,
    "date": date,
    "decimal": Decimal,
    "double": float,
    "enum": str,
    "fixed": bytes,
    "float": float,
    "int": int,
    "local-timestamp-micros": datetime,
    "local-timestamp-millis": datetime,
    "long": int,
    "map": dict,
    "string": str,
    "time-micros": time,
    "time-millis": time,
    "timestamp-micros": datetime,
    "timestamp-millis": datetime,
    "uuid": UUID,
}
_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})


def avro_word(node: Any) -> str:
    """Return the word that says what values of a schema are, which is no union and has no names.

    >>> avro_word("int"), avro_word({"type": "int", "logicalType": "date"})
    ('int', 'date')
    """
    if isinstance(node, str):
        # A name that is left over names a record that it stands in.
        return node if node in _PRIMITIVES else "name"
    logical = node.get("logicalType")
    word: str = logical if logical in AVRO_TYPES else node["type"]
    return word


def expanded_avro(schema: Any) -> Any:
    """Return an Avro schema, as the parsed JSON, in which each name stands for what it names.

    Raises
    ------
    SerializationError
        The package fastavro is missing.
    ValueError
        It is not a schema.
    """
    try:
        from fastavro.schema import SchemaParseException, UnknownType, expand_schema
    except ImportError as error:
        raise SerializationError(
            "serdes.avro needs the package fastavro", hint="pip install 'headrace[avro]'"
        ) from error
    try:
        return expand_schema(schema)
    except (SchemaParseException, UnknownType, KeyError, TypeError) as error:
        message = f"it is no schema of Avro: {type(error).__name__}: {error}"
        raise ValueError(message) from error


class AvroSerde(Serde[Any]):
    """Avro's binary form of one schema, without a header.

    Parameters
    ----------
    schema
        The schema, as JSON text or as the parsed JSON.
    names
        Whether a value that is read of a record, an enum or a fixed in a union is a tuple of its
        name and itself.
    """

    name: ClassVar[str] = "avro"

    def __init__(self, schema: AvroSchema, *, names: bool = False) -> None:
        self.text = schema if isinstance(schema, str) else json.dumps(schema)
        #: The schema as the parsed JSON, and with what each name names in its place.
        try:
            self.declared = json.loads(self.text)
        except ValueError:
            self.declared = self.text
        self.expanded = expanded_avro(self.declared)
        from fastavro import parse_schema, schemaless_reader, schemaless_writer

        self._names = names
        self._parsed = parse_schema(self.declared)
        self._reader, self._writer = schemaless_reader, schemaless_writer

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(AvroSerde, names=self._names), (self.text,)

    def __repr__(self) -> str:
        name = self.declared.get("name", "") if isinstance(self.declared, dict) else ""
        return f"avro({name})"

    @property
    def hint(self) -> Any:
        return dict if self._is_record else Any

    @property
    def _is_record(self) -> bool:
        return isinstance(self.expanded, dict) and self.expanded["type"] == "record"

    @property
    def schema(self) -> Schema | None:
        if not self._is_record:
            return None
        found = ((one["name"], _column(one["type"])) for one in self.expanded["fields"])
        columns = tuple((name, kind) for name, kind in found if kind is not None)
        return Schema(columns) if columns else None

    def serialize(self, value: Any) -> bytes:
        out = io.BytesIO()
        self._writer(out, self._parsed, value)
        return out.getvalue()

    def deserialize(self, data: bytes) -> Any:
        return self.read(io.BytesIO(data))

    def read(self, body: io.BytesIO) -> Any:
        """Read one value that ends where the body ends."""
        names = self._names
        value = self._reader(
            body, self._parsed, None, return_record_name=names, return_named_type=names
        )
        if body.read(1):
            message = f"bytes follow a value of {self!r}: it was written with another schema"
            raise ValueError(message)
        return value


def _column(node: Any) -> pa.DataType | None:
    """Return the type of the column of a field; None where there is none."""
    if isinstance(node, list):
        present = [one for one in node if one != "null"]
        return _column(present[0]) if len(present) == 1 else None
    word = avro_word(node)
    if word == "array":
        items = _column(node["items"])
        return None if items is None else pa.list_(items)
    # A timestamp without a zone is none in columns.
    return None if word.startswith("local") else arrow_type(AVRO_TYPES.get(word))


def avro(schema: AvroSchema) -> Serde[Any]:
    r"""Make a serde for Avro's binary form of one schema; values of a record are dicts.

    It needs the extra ``headrace[avro]``.

    Parameters
    ----------
    schema
        The schema that writes and reads, as JSON text or as the parsed JSON.

    Examples
    --------
    >>> orders = avro({"type": "record", "name": "Order", "fields": [
    ...     {"name": "item", "type": "string"}, {"name": "price", "type": "long"}]})
    >>> orders.serialize({"item": "tea", "price": 3})
    b'\x06tea\x06'
    >>> orders.deserialize(b"\x06tea\x06")
    {'item': 'tea', 'price': 3}
    """
    return AvroSerde(schema)


# Tables: a message with an empty body deletes its key.


class TableDeserializer(Deserializer[Any, Any]):
    """Reads another deserializer's records; a message with an empty body deletes its key."""

    def __init__(self, inner: Deserializer[Any, Any]) -> None:
        self._inner = inner
        self.key_hint = inner.key_hint
        self.value_hint = inner.value_hint if inner.value_hint is Any else inner.value_hint | None
        self.value_serde = None if inner.value_serde is None else nullable(inner.value_serde)

    @property
    def has_message_keys(self) -> bool:
        """Whether rows have the keys of their messages, by which a broker compacts."""
        return isinstance(self._inner, KeyDeserializer)

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


# Protobuf: values of one generated message class.

M = TypeVar("M", bound="Message")

#: By the kind of the field in Python: FieldDescriptor.CPPTYPE_INT32 and so on.
_PROTOBUF_COLUMNS: dict[int, pa.DataType] = {
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
        found = ((field.name, _column_type(field)) for field in self._message.DESCRIPTOR.fields)
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
        known = [(field, kind) for field in fields if (kind := _column_type(field)) is not None]
        arrays = [column_of(_values(messages, field), kind) for field, kind in known]
        return pa.RecordBatch.from_arrays(arrays, [field.name for field, _ in known])


def _column_type(field: Any) -> pa.DataType | None:
    """Return the type of a field's column; None for messages and maps."""
    kind = pa.binary() if field.type == _BYTES else _PROTOBUF_COLUMNS.get(field.cpp_type)
    return pa.list_(kind) if kind is not None and field.is_repeated else kind


def _values(messages: list[Any], field: Any) -> list[Any]:
    """Return a field of many messages; None where an optional field is absent."""
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

    It needs the extra ``headrace[protobuf]``.

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


_ID = struct.Struct(">q")
#: Avro's form of the lengths 8 and 16.
_SHORT, _LONG = b"\x10", b"\x20"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry knows it."""

    #: The registry's id of this version of the schema.
    record_id: int
    kind: Literal["AVRO", "JSON"]
    #: The schema itself.
    idl: str = ""
    #: Schemas of other versions whose messages are still read, by their ids.
    others: Mapping[int, str] = field(default_factory=dict, hash=False)


class SchemaRegistry:
    """A client of a schema registry.

    Parameters
    ----------
    url
        The URL where its paths begin, e.g. ``http://registry:8080/schema-registry/v1``.
    cluster
        Cluster of the subjects.
    timeout
        Seconds to wait for an answer.
    """

    def __init__(self, url: str, *, cluster: str = "default", timeout: float = 10) -> None:
        if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
            message = f"a schema registry has an address of http or https, not {url!r}"
            raise ValueError(message)
        self._url = url.rstrip("/")
        self._cluster = cluster
        self._timeout = timeout

    def schema(self, subject: str) -> RegisteredSchema:
        """Return the present schema of a subject, which has the name of its topic.

        Raises
        ------
        SerializationError
            If the registry does not answer, or knows no such subject.
        """
        place = (
            f"/cluster/{urllib.parse.quote(self._cluster)}/subject/{urllib.parse.quote(subject)}"
        )
        try:
            with urllib.request.urlopen(self._url + place, timeout=self._timeout) as answer:  # noqa: S310
                found = json.load(answer)
            record_id = found["recordId"] if "recordId" in found else found["schemaId"]
            return RegisteredSchema(int(record_id), found.get("type") or "AVRO", found["idl"])
        except (OSError, ValueError, KeyError) as error:
            raise SerializationError(
                f"the schema registry at {self._url} gives no schema for subject '{subject}':"
                f" {type(error).__name__}: {error}",
                hint="compare address, cluster and subject with what was registered",
            ) from error


class RegisteredSerde(Serde[Any]):
    """Writes and reads values behind the id of their schema.

    Parameters
    ----------
    schema
        The schema that is written and read.
    values
        Writes what follows the id; by default what the kind of the schema says.
    """

    def __init__(self, schema: RegisteredSchema, values: Serde[Any] | None = None) -> None:
        self._registered = schema
        self._given = values
        default: Serde[Any] = AvroSerde(schema.idl) if schema.kind == "AVRO" else JsonSerde()
        self._values = default if values is None else values
        self._others = {number: AvroSerde(idl) for number, idl in schema.others.items()}
        mark = _SHORT if schema.kind == "AVRO" else b""
        self._head = mark + _ID.pack(schema.record_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return RegisteredSerde, (self._registered, self._given)

    def __repr__(self) -> str:
        return f"registered({self._values!r}, id {self._registered.record_id})"

    @property
    def hint(self) -> Any:
        """The type of its values."""
        return self._values.hint

    @property
    def schema(self) -> Schema | None:
        """The columns of its values."""
        return self._values.schema

    def serialize(self, value: Any) -> bytes:
        """Write the id, then the value."""
        return self._head + self._values.serialize(value)

    def deserialize(self, data: bytes) -> Any:
        """Read a value by the schema that its id names."""
        start = 0
        if self._registered.kind == "AVRO":
            if data[:1] not in {_SHORT, _LONG}:
                message = f"no id of a schema stands before this body: {data[:20]!r}"
                raise ValueError(message)
            start = 1
        (number,) = _ID.unpack_from(data, start)
        end = start + (16 if data[:start] == _LONG else 8)
        if number == self._registered.record_id:
            return self._values.deserialize(data[end:])
        other = self._others.get(number)
        if other is None:
            message = (
                f"this body has the schema with id {number}, and only"
                f" {[self._registered.record_id, *self._others]} are known"
            )
            raise ValueError(message)
        return other.read(io.BytesIO(data[end:]))


def registered(schema: RegisteredSchema, values: Serde[Any] | None = None) -> Serde[Any]:
    r"""Make a serde for bodies as the Java serdes of RocketMQ's schema registry write them.

    Parameters
    ----------
    schema
        From :meth:`SchemaRegistry.schema`, or made by hand.
    values
        Writes what follows the id, such as ``serdes.json(Order)``; by default Avro by the schema,
        or plain JSON.

    Examples
    --------
    >>> serde = registered(RegisteredSchema(7, "JSON"))
    >>> serde.serialize({"a": 1})
    b'\x00\x00\x00\x00\x00\x00\x00\x07{"a":1}'
    """
    return RegisteredSerde(schema, values)
