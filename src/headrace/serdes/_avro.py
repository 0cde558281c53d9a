"""Avro: values as dicts, by a schema that is given."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.columns.schema import Schema
from headrace.errors import SerializationError
from headrace.serdes.base import Serde

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["AvroSerde", "avro"]

AvroSchema = Mapping[str, Any] | list[Any] | str

_COLUMNS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
    "double": pa.float64(),
    "enum": pa.string(),
    "fixed": pa.binary(),
    "float": pa.float64(),
    "int": pa.int64(),
    "long": pa.int64(),
    "string": pa.string(),
}
_LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
}


def _fastavro() -> ModuleType:
    try:
        import fastavro
    except ImportError as error:
        raise SerializationError(
            "serdes.avro needs the package fastavro", hint="pip install 'headrace[avro]'"
        ) from error
    module: ModuleType = fastavro
    return module


class AvroSerde(Serde[Any]):
    """Avro's binary form of one schema, without a header.

    Parameters
    ----------
    schema
        The schema, as JSON text or as what that text says.
    """

    name: ClassVar[str] = "avro"

    def __init__(self, schema: AvroSchema) -> None:
        self._module = _fastavro()
        self.text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            declared = json.loads(self.text)
        except ValueError:
            declared = self.text
        self._declared = declared
        self._parsed = self._module.parse_schema(declared)

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroSerde, (self.text,)

    def __repr__(self) -> str:
        name = self._declared.get("name", "") if isinstance(self._declared, dict) else ""
        return f"avro({name})"

    @property
    def hint(self) -> Any:
        return dict if self._is_record else Any

    @property
    def _is_record(self) -> bool:
        return isinstance(self._declared, dict) and self._declared.get("type") == "record"

    @property
    def schema(self) -> Schema | None:
        if not self._is_record:
            return None
        found = ((one["name"], _column(one["type"])) for one in self._declared["fields"])
        columns = tuple((name, kind) for name, kind in found if kind is not None)
        return Schema(columns) if columns else None

    def serialize(self, value: Any) -> bytes:
        out = io.BytesIO()
        self._module.schemaless_writer(out, self._parsed, value)
        return out.getvalue()

    def deserialize(self, data: bytes) -> Any:
        return self.read(io.BytesIO(data))

    def read(self, body: io.BytesIO) -> Any:
        """Read one value that ends where the body ends."""
        value = self._module.schemaless_reader(body, self._parsed, None)
        if body.read(1):
            message = f"bytes follow a value of {self!r}: it was written with another schema"
            raise ValueError(message)
        return value


def _column(kind: Any) -> pa.DataType | None:
    """Give the type of the column of a field; None where there is none."""
    if isinstance(kind, list):
        present = [one for one in kind if one != "null"]
        return _column(present[0]) if len(present) == 1 else None
    if isinstance(kind, str):
        return _COLUMNS.get(kind)
    logical = kind.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(38, 9)
    if logical is not None:
        return _LOGICAL.get(logical)
    if kind["type"] == "array":
        items = _column(kind["items"])
        return None if items is None else pa.list_(items)
    return _column(kind["type"]) if kind["type"] in _COLUMNS else None


def avro(schema: AvroSchema) -> Serde[Any]:
    r"""Make a serde for Avro's binary form of one schema; values of a record are dicts.

    Needs the extra ``headrace[avro]``.

    Parameters
    ----------
    schema
        The schema that writes and reads, as JSON text or as what that text says.

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
