"""Avro, by a schema that is given or one that RocketMQ's schema registry keeps."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from headrace.connect.config import Config, declare, key
from headrace.connect.converters.avro_schemas import branch_name, expanded, schema_from_avro
from headrace.connect.converters.base import Column, Converted, Converter
from headrace.connect.converters.steps import UnfitError, kind_of
from headrace.connect.numbers import single
from headrace.errors import ConnectorConfigError
from headrace.serdes import AvroSerde, RegisteredSchema, SchemaRegistry, Serde, registered

if TYPE_CHECKING:
    from headrace.connect.schema import Schema

# Values as what :mod:`fastavro` writes by a schema, and back: one function per schema.

Step = Callable[[Any], Any]

_RANGES = {"int": 31, "long": 63}
_MOMENTS: Mapping[str, type] = {
    "date": date,
    "time-millis": time,
    "time-micros": time,
    "timestamp-millis": datetime,
    "timestamp-micros": datetime,
    "local-timestamp-millis": datetime,
    "local-timestamp-micros": datetime,
}


def avro_writer(node: Any) -> Step:
    """Make the function from values to what an expanded Avro schema writes.

    >>> avro_writer({"type": "array", "items": ["null", "int"]})([1, None])
    [1, None]
    """
    if isinstance(node, list):
        return _union_writer(node)
    if isinstance(node, str):
        return _scalar_writer(node)
    if isinstance(node["type"], dict | list):
        return avro_writer(node["type"])
    if (logical := node.get("logicalType")) is not None:
        return _logical_writer(node, logical)
    match node["type"]:
        case "record" | "error":
            return _record_writer(node)
        case "array" if node.get("connect.type") == "map":
            return _pairs_writer(node)
        case "array":
            return _array(avro_writer(node["items"]))
        case "map":
            return _map(avro_writer(node["values"]))
        case "enum":
            return _enum_writer(node)
        case "fixed":
            return _fixed_writer(node)
        case kind:
            return _scalar_writer(kind)


def _wrong(kind: str, value: Any) -> UnfitError:
    return UnfitError(f"Avro's {kind} is needed, not {kind_of(value)}")


def _scalar_writer(kind: str) -> Step:
    if kind in _RANGES:
        return _whole(kind, _RANGES[kind])
    takes: dict[str, type | tuple[type, ...]] = {
        "null": type(None),
        "boolean": bool,
        "string": str,
        "bytes": (bytes, bytearray),
        "float": (float, int),
        "double": (float, int),
    }
    # A name that is left over names a record that it stands in: fastavro writes it.
    wanted = takes.get(kind, object)

    def write(value: Any) -> Any:
        if not isinstance(value, wanted) or (isinstance(value, bool) and kind[0] in "fd"):
            raise _wrong(kind, value)
        return value

    return write


def _whole(kind: str, bits: int) -> Step:
    def write(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(kind, value)
        if not -(1 << bits) <= value < 1 << bits:
            reason = f"{value} is beyond the range of Avro's {kind}"
            raise UnfitError(reason)
        return value

    return write


def _logical_writer(node: dict[str, Any], logical: str) -> Step:
    if logical == "decimal":
        return _decimal_writer(node)
    if logical == "uuid":
        return lambda value: str(value) if isinstance(value, UUID) else _text(value)
    wanted = _MOMENTS.get(logical)
    if wanted is None:
        return avro_writer({**node, "logicalType": None})

    def write(value: Any) -> Any:
        # A timestamp is a date to Python.
        if not isinstance(value, wanted) or (wanted is date and isinstance(value, datetime)):
            raise _wrong(logical, value)
        return value if wanted is not datetime else _zoned(logical, value)

    return write


def _zoned(logical: str, value: Any) -> datetime:
    moment: datetime = value
    if moment.tzinfo is None:
        reason = "a timestamp needs a zone"
        raise UnfitError(reason, hint="give it one: value.replace(tzinfo=UTC)")
    is_local = logical.startswith("local")
    return moment.astimezone(UTC).replace(tzinfo=None) if is_local else moment


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong("string", value)
    return value


def _decimal_writer(node: dict[str, Any]) -> Step:
    scale, precision = int(node.get("scale", 0)), int(node["precision"])

    def write(value: Any) -> Decimal:
        if not isinstance(value, Decimal) or not value.is_finite():
            raise _wrong("decimal", value)
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        if -exponent > scale or len(digits) + exponent + scale > precision:
            reason = f"{value} does not fit {precision} digits of which {scale} follow the point"
            raise UnfitError(reason, hint=f"quantize it to {scale} digits, or change the schema")
        return value

    return write


def _enum_writer(node: dict[str, Any]) -> Step:
    words = node["symbols"]

    def write(value: Any) -> Any:
        if value not in words:
            reason = f"{value!r:.60} is not one of {', '.join(words)}"
            raise UnfitError(reason)
        return value

    return write


def _fixed_writer(node: dict[str, Any]) -> Step:
    def write(value: Any) -> Any:
        if not isinstance(value, bytes | bytearray):
            raise _wrong("fixed", value)
        if len(value) != node["size"]:
            reason = f"{node['size']} bytes are needed, not {len(value)}"
            raise UnfitError(reason)
        return value

    return write


def _record_writer(node: dict[str, Any]) -> Step:
    fields = [(one["name"], avro_writer(one["type"]), one.get("default")) for one in node["fields"]]
    names = dict.fromkeys(name for name, _, _ in fields).keys()

    def write(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong("record", value)
        if not names >= value.keys():
            extra = next(one for one in value if one not in names)
            reason = f"the schema has no field {extra!r}"
            raise UnfitError(reason, hint=f"it has: {', '.join(names) or 'none'}")
        return {name: _at(name, step, value.get(name), given) for name, step, given in fields}

    return write


def _at(name: str, step: Step, value: Any, default: Any) -> Any:
    try:
        # What a default is written as is fastavro's business.
        return default if value is None and default is not None else step(value)
    except UnfitError as error:
        raise error.inside(name) from None


def _array(step: Step) -> Step:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _wrong("array", value)
        return [_at(f"[{place}]", step, one, None) for place, one in enumerate(value)]

    return convert


def _map(step: Step) -> Step:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _wrong("map", value)
        return {_text(name): _at(f"[{name!r}]", step, one, None) for name, one in value.items()}

    return convert


def _pairs_writer(node: dict[str, Any]) -> Step:
    write = avro_writer(node["items"])

    def pairs(value: Any) -> list[Any]:
        if not isinstance(value, Mapping):
            raise _wrong("map", value)
        return [write({"key": name, "value": one}) for name, one in value.items()]

    return pairs


def _union_writer(branches: list[Any]) -> Step:
    present = [one for one in branches if one != "null"]
    nullable = len(present) < len(branches)
    single_step = avro_writer(present[0]) if len(present) == 1 else None
    steps = {branch_name(one): (one, avro_writer(one)) for one in present}

    def write(value: Any) -> Any:
        if value is None and nullable:
            return None
        if single_step is not None:
            return single_step(value)
        return _chosen(steps, value)

    return write


def _chosen(steps: Mapping[str, tuple[Any, Step]], value: Any) -> Any:
    """Write a value of a union: a struct with one field that is not null, or the value itself."""
    if isinstance(value, Mapping) and value.keys() <= steps.keys():
        given = [name for name, one in value.items() if one is not None]
        if len(given) == 1:
            node, step = steps[given[0]]
            return _named(node, _at(given[0], step, value[given[0]], None))
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
    if isinstance(node, str):
        return single if node == "float" else None
    if isinstance(node["type"], dict | list):
        return avro_reader(node["type"])
    if (logical := node.get("logicalType")) is not None:
        return _LOGICAL_READERS.get(logical)
    match node["type"]:
        case "record" | "error":
            return _record_reader(node)
        case "array" if node.get("connect.type") == "map":
            return _pairs_reader(node)
        case "array":
            return _list_of(avro_reader(node["items"]))
        case "map":
            return _dict_of(avro_reader(node["values"]))
        case "enum" | "fixed":
            return None
        case kind:
            return avro_reader(kind)


_LOGICAL_READERS: Mapping[str, Step] = {
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
    names = list(steps)
    kinds = [(branch_name(one), _python_types(one)) for one in present]

    def read(value: Any) -> Any:
        if value is None:
            return None
        name = _branch(kinds, value)
        return dict.fromkeys(names) | {name: steps[name](_unnamed(value))}

    return read


def _unnamed(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value


def _branch(kinds: list[tuple[str, tuple[type, ...]]], value: Any) -> str:
    if isinstance(value, tuple):
        return str(value[0]).rpartition(".")[2]
    # A bool is an int to Python, and a timestamp a date.
    exact = (name for name, types in kinds if type(value) in types)
    return next(exact)


def _python_types(node: Any) -> tuple[type, ...]:
    if isinstance(node, dict) and (logical := node.get("logicalType")) is not None:
        known = {"decimal": Decimal, "uuid": UUID, **_MOMENTS}
        if logical in known:
            return (known[logical],)
    kind = node if isinstance(node, str) else node["type"]
    return {
        "boolean": (bool,),
        "int": (int,),
        "long": (int,),
        "float": (float,),
        "double": (float,),
        "string": (str,),
        "bytes": (bytes,),
        "array": (list,),
        "map": (dict,),
    }.get(kind, (dict, str, bytes))


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
