"""RocketMQ's schema registry: schemas by subject, and the bodies that its Java serdes write.

A body begins with the id of the record that the registry keeps of the schema: eight bytes, the
high ones first; before Avro they stand as Avro ``bytes``, with their length.  Java's serdes of
before 2023 write sixteen there, the last eight zero, which is read too.

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
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import SerializationError
from headrace.serdes._avro import AvroSerde
from headrace.serdes._documents import JsonSerde
from headrace.serdes.base import Serde

if TYPE_CHECKING:
    from headrace.columns.schema import Schema

__all__ = ["RegisteredSchema", "RegisteredSerde", "SchemaRegistry", "registered"]

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
    """Asks a schema registry.

    Parameters
    ----------
    url
        Where its paths begin, e.g. ``http://registry:8080/schema-registry/v1``.
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
        """Give the present schema of a subject, which has the name of its topic.

        Raises
        ------
        SerializationError
            The registry does not answer, or knows no such subject.
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
    """Values behind the id of their schema.

    Parameters
    ----------
    schema
        What is written, and read.
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
