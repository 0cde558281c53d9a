"""Protobuf, by a message that a module or a file of descriptors declares."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connect.config import Config, declare, key
from headrace.connect.converters.base import Column, Converted, Converter
from headrace.connect.converters.steps import UnfitError
from headrace.errors import ConnectorConfigError
from headrace.serdes import ProtobufSerde

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from headrace.connect.schema import Schema


_MISSING = "ProtobufConverter needs the package protobuf"


class ProtobufConverter(Converter):
    r"""Protobuf by one message, whose fields become the fields of a struct.

    Examples
    --------
    >>> converter = ProtobufConverter.of(
    ...     {"message": "google.protobuf.source_context_pb2:SourceContext"}
    ... )
    >>> converter.to_bytes("files", None, {"file_name": "a"})
    b'\n\x01a'
    >>> converter.from_bytes("files", b"\n\x01a").value
    {'file_name': 'a'}
    """

    version = "1.0"

    config = declare(
        key(
            "message",
            str,
            "The message: module:Class of what protoc made, or its full name in the file of"
            " descriptors.",
            required=True,
        ),
        key(
            "descriptor.file",
            Path,
            "A file of descriptors, as protoc --include_imports --descriptor_set_out writes it.",
            importance="high",
        ),
    )

    def set_up(self, config: Config) -> None:
        """Look up the message."""
        try:
            import google.protobuf  # noqa: F401
        except ImportError as error:
            raise ConnectorConfigError(_MISSING, hint="pip install 'headrace[protobuf]'") from error
        from headrace.connect.converters import _protobuf_values, protobuf_schemas

        self._message = _found(config["message"], config["descriptor.file"])
        self._serde = ProtobufSerde(self._message)
        self._schema = protobuf_schemas.schema_from_protobuf(self._message)
        self._fill, self._told = _protobuf_values.fill, _protobuf_values.told

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write a value, equal ones as equal bytes; null has no body."""
        if value is None:
            return None
        message = self._message()
        self._fill(message, value)
        return self._serde.serialize(message)

    def read(self, topic: str, body: bytes | None) -> Converted:
        """Read a value; fields that the message does not declare are passed over."""
        if body is None:
            return Converted(None, None)
        from google.protobuf.message import DecodeError

        try:
            message = self._serde.deserialize(body)
        except DecodeError as error:
            reason = f"it is no {self._message.DESCRIPTOR.full_name}: {error}"
            raise UnfitError(reason) from None
        return Converted(self._schema, self._told(message))

    def read_column(self, topic: str, bodies: pa.Array) -> Column | None:
        """Read a column in which no message has a body."""
        return Column(None, pa.nulls(len(bodies))) if bodies.null_count == len(bodies) else None


def _found(name: str, file: Path | None) -> type[Message]:
    try:
        return _of_module(name) if file is None else _of_file(name, file)
    except (ImportError, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        where = "" if file is None else f" in {file}"
        problem = f"The key message is {name!r}, and there is no such message{where}: {error}"
        raise ConnectorConfigError.of([("message", problem)]) from error


def _of_module(name: str) -> type[Message]:
    from google.protobuf.message import Message

    module, _, attribute = name.partition(":")
    if not attribute:
        reason = "without a descriptor.file it is module:Class"
        raise ValueError(reason)
    found: Any = importlib.import_module(module)
    for step in attribute.split("."):
        found = getattr(found, step)
    if not isinstance(found, type) or not issubclass(found, Message):
        reason = f"{attribute} is no message"
        raise TypeError(reason)
    return found


def _of_file(name: str, file: Path) -> type[Message]:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    # A pool of its own: two converters may have different versions of one message.
    pool = DescriptorPool()
    try:
        declared = FileDescriptorSet.FromString(file.read_bytes())
    except DecodeError as error:
        reason = f"it is no file of descriptors: {error}"
        raise ValueError(reason) from None
    for one in declared.file:
        pool.AddSerializedFile(one.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name))
