"""Avro, by a schema that is given or one that RocketMQ's schema registry keeps."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from headrace.connect.config import Config, declare, key
from headrace.connect.converters.avro_schemas import branch_name, schema_from_avro
from headrace.connect.converters.base import Column, Converted, Converter
from headrace.connect.converters.steps import (
    Step,
    UnfitError,
    array_of,
    fields_of,
    kind_of,
    pairs_of,
    struct_of,
    whole_number,
    wrong,
    zoned,
)
from headrace.connect.numbers import single
from headrace.errors import ConnectorConfigError
from headrace.serdes import AvroSerde, RegisteredSchema, SchemaRegistry, Serde, registered
from headrace.serdes.registry import AVRO_TYPES, avro_word

if TYPE_CHECKING:
    from headrace.connect.schema import Schema

# Values as what :mod:`fastavro` writes by a schema, and back: one function per schema.

#: What values may be that Avro's own type in Python does not say.
_TAKEN: Mapping[str, type | tuple[type, ...]] = {
    "bytes": (bytes, bytearray),
    "double": (float, int),
    "float": (float, int),
    # It names a record that it stands in: fastavro writes it.
    "name": object,
    "null": type(None),
}
#: A bool is an int to Python, and a timestamp a date.
_REFUSED: Mapping[str, type] = {"date": datetime, "double": bool, "float": bool}


def avro_writer(node: Any) -> Step:
    """Make the function from values to what an expanded Avro schema writes.

    >>> avro_writer({"type": "array", "items": ["null", "int"]})([1, None])
    [1, None]
    """
    if isinstance(node, list):
        return _union_writer(node)
    word = avro_word(node)
    wanted = f"Avro's {word}"
    match word:
        case "record" | "error":
            return struct_of(map(_field_writer, node["fields"]), wanted)
        case "array" if node.get("connect.type") == "map":
            return _pairs_writer(node["items"]["fields"])
        case "array":
            return array_of(avro_writer(node["items"]), wanted)
        case "map":
            pairs = pairs_of(_text, avro_writer(node["values"]), wanted)
            return lambda value: dict(pairs(value))
        case "enum":
            return _enum_writer(node["symbols"])
        case "fixed":
            return _fixed_writer(node["size"])
        case "decimal":
            return _decimal_writer(int(node.get("scale", 0)), int(node["precision"]))
        case "uuid":
            return lambda value: str(value) if isinstance(value, UUID) else _text(value)
        case "int" | "long":
            return whole_number(wanted, 32 if word == "int" else 64)
        case _ if AVRO_TYPES.get(word) is datetime:
            return _timestamp_writer(wanted, is_local=word.startswith("local"))
        case _:
            return _scalar_writer(word, wanted)


def _scalar_writer(word: str, wanted: str) -> Step:
    taken, refused = _TAKEN.get(word) or AVRO_TYPES[word], _REFUSED.get(word, ())

    def write(value: Any) -> Any:
        if not isinstance(value, taken) or isinstance(value, refused):
            raise wrong(wanted, value)
        return value

    return write


def _timestamp_writer(wanted: str, *, is_local: bool) -> Step:
    if is_local:
        return lambda value: zoned(value, wanted).astimezone(UTC).replace(tzinfo=None)
    return lambda value: zoned(value, wanted)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong("Avro's string", value)
    return value


def _decimal_writer(scale: int, precision: int) -> Step:
    def write(value: Any) -> Decimal:
        if not isinstance(value, Decimal) or not value.is_finite():
            raise wrong("Avro's decimal", value)
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        if -exponent > scale or len(digits) + exponent + scale > precision:
            reason = f"{value} does not fit {precision} digits of which {scale} follow the point"
            raise UnfitError(reason, hint=f"quantize it to {scale} digits, or change the schema")
        return value

    return write


def _enum_writer(words: list[str]) -> Step:
    def write(value: Any) -> Any:
        if value not in words:
            reason = f"{value!r:.60} is not one of {', '.join(words)}"
            raise UnfitError(reason)
        return value

    return write


def _fixed_writer(size: int) -> Step:
    def write(value: Any) -> Any:
        if not isinstance(value, bytes | bytearray):
            raise wrong("Avro's fixed", value)
        if len(value) != size:
            reason = f"{size} bytes are needed, not {len(value)}"
            raise UnfitError(reason)
        return value

    return write


def _field_writer(field: dict[str, Any]) -> tuple[str, Step]:
    name, step, default = field["name"], avro_writer(field["type"]), field.get("default")
    if default is None:
        return name, step
    # What a default is written as is fastavro's business.
    return name, lambda value: default if value is None else step(value)


def _pairs_writer(fields: list[dict[str, Any]]) -> Step:
    steps = dict(map(_field_writer, fields))
    pairs = pairs_of(steps["key"], steps["value"], "Avro's map")
    return lambda value: [{"key": name, "value": one} for name, one in pairs(value)]


def _union_writer(branches: list[Any]) -> Step:
    present = [one for one in branches if one != "null"]
    if len(present) == 1:
        choose = avro_writer(present[0])
    else:
        choose = partial(_chosen, {branch_name(one): (one, avro_writer(one)) for one in present})
    if len(present) == len(branches):
        return choose
    return lambda value: None if value is None else choose(value)


def _chosen(steps: Mapping[str, tuple[Any, Step]], value: Any) -> Any:
    """Write a value of a union: a struct with one field that is not null, or the value itself."""
    if isinstance(value, Mapping) and value.keys() <= steps.keys():
        given = [name for name, one in value.items() if one is not None]
        if len(given) == 1:
            node, step = steps[given[0]]
            return _named(node, fields_of([(given[0], step)], value)[given[0]])
    for node, step in steps.values():
        try:
            return _named(node, step(value))
        except UnfitError:
            continue
    reason = f"no type of the union ({', '.join(steps)}) takes {kind_of(value)}"
    raise UnfitError(reason)


def _named(node: Any, value: Any) -> Any:
    """Return a value in the form that tells fastavro which branch of a union is meant."""
    if isinstance(node, dict) and "name" in node:
        return node["name"], value
    return value


# Reading


def avro_reader(node: Any) -> Step | None:
    """Make the function from what :mod:`fastavro` reads to values; ``None`` where they are equal."""
    if isinstance(node, list):
        return _union_reader(node)
    match avro_word(node):
        case "record" | "error":
            return _record_reader(node)
        case "array" if node.get("connect.type") == "map":
            return _pairs_reader(node)
        case "array":
            return _list_of(avro_reader(node["items"]))
        case "map":
            return _dict_of(avro_reader(node["values"]))
        case word:
            return _READERS.get(word)


_READERS: Mapping[str, Step] = {
    "float": single,
    "local-timestamp-micros": lambda value: value.replace(tzinfo=UTC),
    "local-timestamp-millis": lambda value: value.replace(tzinfo=UTC),
    "uuid": str,
}


def _record_reader(node: dict[str, Any]) -> Step | None:
    found = [(one["name"], avro_reader(one["type"])) for one in node["fields"]]
    steps = [(name, step) for name, step in found if step is not None]
    if not steps:
        return None

    def read(value: dict[str, Any]) -> dict[str, Any]:
        for name, step in steps:
            value[name] = step(value[name])
        return value

    return read


def _list_of(step: Step | None) -> Step | None:
    return None if step is None else lambda value: list(map(step, value))


def _dict_of(step: Step | None) -> Step | None:
    return None if step is None else lambda value: {a: step(b) for a, b in value.items()}


def _pairs_reader(node: dict[str, Any]) -> Step:
    step = avro_reader(node["items"]) or _same
    return lambda value: {one["key"]: one["value"] for one in map(step, value)}


def _same(value: Any) -> Any:
    return value


def _union_reader(branches: list[Any]) -> Step | None:
    present = [one for one in branches if one != "null"]
    steps = {branch_name(one): avro_reader(one) or _same for one in present}
    if len(present) == 1:
        (step,) = steps.values()
        return lambda value: None if value is None else step(_unnamed(value))
    # What has a name in the schema says it.
    kinds = {branch_name(one): AVRO_TYPES.get(avro_word(one)) for one in present}
    nothing = dict.fromkeys(steps)

    def read(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            name = str(value[0]).rpartition(".")[2]
        else:
            # A bool is an int to Python, and a timestamp a date.
            name = next(name for name, kind in kinds.items() if type(value) is kind)
        return nothing | {name: steps[name](_unnamed(value))}

    return read


def _unnamed(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value


class _Coder:
    """Values of one Avro schema, with or without the id of the registry before them."""

    def __init__(self, text: str, found: RegisteredSchema | None = None) -> None:
        values = AvroSerde(text, names=True)
        self._serde: Serde[Any] = values if found is None else registered(found, values)
        self._write = avro_writer(values.expanded)
        self._read = avro_reader(values.expanded)
        self._schema = schema_from_avro(values.declared)

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
