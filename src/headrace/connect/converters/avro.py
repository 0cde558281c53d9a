"""Avro, by a schema that is given or one that RocketMQ's schema registry keeps."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connect.config import Config, declare, key
from headrace.connect.converters._avro_values import avro_reader, avro_writer
from headrace.connect.converters._fitting import UnfitError
from headrace.connect.converters.avro_schemas import expanded, schema_from_avro
from headrace.connect.converters.base import Column, Converted, Converter
from headrace.errors import ConnectorConfigError
from headrace.serdes import AvroSerde, RegisteredSchema, SchemaRegistry, Serde, registered

if TYPE_CHECKING:
    from headrace.connect.schema import Schema

__all__ = ["AvroConverter"]


class _NamingAvroSerde(AvroSerde):
    """Avro whose unions say which of their records and enums a value is."""

    def read(self, body: io.BytesIO) -> Any:
        """Read one value that ends where the body ends."""
        value = self._module.schemaless_reader(
            body, self._parsed, None, return_record_name=True, return_named_type=True
        )
        if body.read(1):
            message = f"bytes follow a value of {self!r}: it was written with another schema"
            raise ValueError(message)
        return value


class _Coder:
    """Values of one Avro schema, with or without the id of the registry before them."""

    def __init__(self, text: str, found: RegisteredSchema | None = None) -> None:
        node = expanded(_told(text))
        values = _NamingAvroSerde(text)
        self._serde: Serde[Any] = values if found is None else registered(found, values)
        self._write = avro_writer(node)
        self._read = avro_reader(node)
        self._schema = schema_from_avro(_told(text))

    def write(self, value: Any) -> bytes:
        """Write a value."""
        return self._serde.serialize(self._write(value))

    def read(self, body: bytes) -> Converted:
        """Read a value."""
        try:
            value = self._serde.deserialize(body)
        except (EOFError, IndexError, KeyError) as error:
            reason = f"it is not what this schema of Avro writes: {type(error).__name__}: {error}"
            raise UnfitError(reason) from None
        return Converted(self._schema, value if self._read is None else self._read(value))


def _told(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class AvroConverter(Converter):
    r"""Avro by one schema, which the config gives, or which a registry keeps for each topic.

    Optional values, defaults and names of schemas come from the Avro schema; a union of several
    types is a struct with one field for each of them, of which one is not null.

    Examples
    --------
    >>> converter = AvroConverter.of({"schema": '{"type": "array", "items": "long"}'})
    >>> converter.to_bytes("numbers", None, [1, 2])
    b'\x04\x02\x04\x00'
    >>> converter.from_bytes("numbers", b"\x04\x02\x04\x00")
    Converted(schema=array<int64>, value=[1, 2])
    """

    version = "1.0"

    config = declare(
        key("schema", str, "The schema, as JSON text.", importance="high"),
        key("schema.file", Path, "The file that holds the schema.", importance="high"),
        key(
            "schema.registry.url",
            str,
            "Where RocketMQ's schema registry keeps the schemas, such as"
            " http://registry:8080/schema-registry/v1; bodies begin with the id of theirs.",
            importance="high",
        ),
        key("schema.registry.cluster", str, "The registry's cluster.", default="default"),
        key(
            "schema.registry.subject",
            str,
            "The subject of the schema; the name of the topic where none is given, with -key"
            " behind it for keys.",
        ),
    )

    def set_up(self, config: Config) -> None:
        """Read the schema, or find out whom to ask for it."""
        given = [one for one in ("schema", "schema.file", "schema.registry.url") if config[one]]
        if len(given) != 1:
            message = (
                "AvroConverter needs one of the keys schema, schema.file and schema.registry.url,"
                f" and has {' and '.join(given) or 'none'}"
            )
            raise ConnectorConfigError(message, hint="give one of them")
        self._subject: str | None = config["schema.registry.subject"]
        self._coder = lru_cache(maxsize=None)(self._ask)
        if given == ["schema.registry.url"]:
            cluster = config["schema.registry.cluster"]
            self._registry = SchemaRegistry(config["schema.registry.url"], cluster=cluster)
            return
        self._fixed = _fixed_coder(given[0], config)

    _registry: SchemaRegistry | None = None
    _fixed: _Coder | None = None

    def _ask(self, topic: str) -> _Coder:
        assert self._registry is not None
        subject = self._subject or (f"{topic}-key" if self.is_key else topic)
        found = self._registry.schema(subject)
        if found.kind != "AVRO":
            reason = f"the registry's schema of subject '{subject}' is {found.kind}, not AVRO"
            raise UnfitError(reason, hint="use JsonConverter, or name another subject")
        return _Coder(found.idl, found)

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write a value; null has no body."""
        return None if value is None else (self._fixed or self._coder(topic)).write(value)

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read a value."""
        if body is None:
            return Converted(None, None)
        return (self._fixed or self._coder(topic)).read(body)

    def read_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Read a column in which no message has a body."""
        return Column(None, pa.nulls(len(bodies))) if bodies.null_count == len(bodies) else None


def _fixed_coder(name: str, config: Config) -> _Coder:
    try:
        text = config["schema"] if name == "schema" else config["schema.file"].read_text()
        return _Coder(text)
    except OSError as error:
        problem = f"The key {name} is {str(config[name])!r}, which cannot be read: {error}"
    except ValueError as error:
        problem = f"The key {name} holds no schema: {error}"
    raise ConnectorConfigError.of([(name, problem)])
