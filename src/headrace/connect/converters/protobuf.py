"""Protobuf, by a message that a module or a file of descriptors declares.

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

import importlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.connect.config import Config, declare, key
from headrace.connect.converters.base import Column, Converted, Converter
from headrace.connect.converters.steps import Step, UnfitError, wrong, zoned
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
from headrace.errors import ConnectorConfigError
from headrace.serdes import ProtobufSerde

if TYPE_CHECKING:
    from google.protobuf.message import Message


# Messages as schemas.

_TIMESTAMP = "google.protobuf.Timestamp"

#: Messages that hold one value, so that it may be missing.
_WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)

#: By the kind of the field in Python: FieldDescriptor.CPPTYPE_INT32 and so on.
_SCALARS: Mapping[int, Schema] = {
    1: INT32,
    2: INT64,
    3: INT64,
    4: INT64,
    5: FLOAT64,
    6: FLOAT32,
    7: BOOLEAN,
    8: STRING,
    9: STRING,
}


def _is_map(field: Any) -> bool:
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
    if name == _TIMESTAMP:
        return TIMESTAMP
    if name in _WRAPPERS:
        return _value(message.fields_by_name["value"], around)
    fields = tuple(Field(one.name, _field(one, (*around, name))) for one in message.fields)
    return Schema(Type.STRUCT, name=name, fields=fields)


def _field(field: Any, around: tuple[str, ...]) -> Schema:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return mapping(_value(entry["key"], around), _value(entry["value"], around))
    made = _value(field, around)
    if field.is_repeated:
        return array(made)
    return made.as_optional() if field.has_presence else made


def _value(field: Any, around: tuple[str, ...]) -> Schema:
    if field.message_type is not None:
        return _message(field.message_type, around)
    return BYTES if field.type == field.TYPE_BYTES else _SCALARS[field.cpp_type]


# Values as messages, and back.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def fill(message: Message, value: Any) -> None:
    """Put a value into an empty message.

    >>> from google.protobuf.wrappers_pb2 import Int64Value
    >>> message = Int64Value()
    >>> fill(message, 5)
    >>> message.value
    5
    """
    name = message.DESCRIPTOR.full_name
    if name == _TIMESTAMP:
        _fill_timestamp(message, value)
    elif name in _WRAPPERS:
        _set(message, message.DESCRIPTOR.fields_by_name["value"], value)
        # A message that was touched is there, also where its value is 0.
        message.SetInParent()
    else:
        _fill_fields(message, value)


def _fill_fields(message: Message, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise wrong(message.DESCRIPTOR.full_name, value)
    fields = message.DESCRIPTOR.fields_by_name
    message.SetInParent()
    chosen: dict[str, str] = {}
    for name, one in value.items():
        field = fields.get(name)
        if field is None:
            reason = f"{message.DESCRIPTOR.full_name} has no field {name!r}"
            raise UnfitError(reason, hint=f"it has: {', '.join(fields) or 'none'}")
        if one is None:
            continue
        _choose(field, chosen)
        try:
            _fill_field(message, field, one)
        except UnfitError as error:
            raise error.inside(name) from None


def _choose(field: Any, chosen: dict[str, str]) -> None:
    """Refuse a second field of a oneof, which would take the place of the first."""
    if field.containing_oneof is None:
        return
    other = chosen.setdefault(field.containing_oneof.name, field.name)
    if other != field.name:
        reason = f"{other} and {field.name} are given, of which only one may be"
        raise UnfitError(reason, hint=f"give one field of {field.containing_oneof.name}")


def _fill_field(message: Message, field: Any, value: Any) -> None:
    if field.is_repeated:
        fill_all = _fill_map if _is_map(field) else _fill_list
        fill_all(getattr(message, field.name), field, value)
    elif field.message_type is not None:
        fill(getattr(message, field.name), value)
    else:
        _set(message, field, value)


def _fill_list(items: Any, field: Any, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise wrong("list", value)
    for place, one in enumerate(value):
        try:
            if field.message_type is not None:
                fill(items.add(), one)
            else:
                _checked(items.append, _scalar(field, one))
        except UnfitError as error:
            raise error.inside(f"[{place}]") from None


def _fill_map(items: Any, field: Any, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise wrong("map", value)
    item = field.message_type.fields_by_name["value"]
    for name, one in value.items():
        try:
            if item.message_type is not None:
                fill(_checked(items.__getitem__, name), one)
            else:
                _checked(items.__setitem__, name, _scalar(item, one))
        except UnfitError as error:
            raise error.inside(f"[{name!r:.40}]") from None


def _set(message: Message, field: Any, value: Any) -> None:
    _checked(setattr, message, field.name, _scalar(field, value))


def _scalar(field: Any, value: Any) -> Any:
    if value is None:
        raise UnfitError("it is null, and a value is required")
    is_bool = field.type == field.TYPE_BOOL
    if isinstance(value, bool) is not is_bool:
        raise wrong("bool" if is_bool else "number or text", value)
    if field.enum_type is not None and isinstance(value, str):
        found = field.enum_type.values_by_name.get(value)
        if found is None:
            words = ", ".join(field.enum_type.values_by_name)
            reason = f"{value!r:.60} is not one of {words}"
            raise UnfitError(reason)
        return found.number
    return value


def _checked(act: Any, *arguments: Any) -> Any:
    try:
        return act(*arguments)
    except (TypeError, ValueError) as error:
        raise UnfitError(str(error)) from None


def _fill_timestamp(message: Any, value: Any) -> None:
    microseconds = (zoned(value) - _EPOCH) // _MICROSECOND
    message.seconds, rest = divmod(microseconds, 1_000_000)
    message.nanos = rest * 1000
    message.SetInParent()


def protobuf_reader(message: Any, made: dict[str, Step] | None = None) -> Step:
    """Make the function from messages to the values that they say.

    What is finer than a microsecond is cut off.

    Parameters
    ----------
    message
        The descriptor of the messages.
    made
        What has been made for messages around it, by their names.

    Examples
    --------
    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> protobuf_reader(StringValue.DESCRIPTOR)(StringValue(value="tea"))
    'tea'
    """
    name = message.full_name
    if name == _TIMESTAMP:
        return _moment
    if name in _WRAPPERS:
        return attrgetter("value")
    made = {} if made is None else made
    if name in made:
        return made[name]
    steps: dict[str, Step] = {}
    made[name] = read = lambda one: {name: step(one) for name, step in steps.items()}
    for field in message.fields:
        steps[field.name] = _field_reader(field, made)
    return read


def _field_reader(field: Any, made: dict[str, Step]) -> Step:
    name, get = field.name, attrgetter(field.name)
    if _is_map(field):
        item = _value_reader(field.message_type.fields_by_name["value"], made)
        return lambda one: {key: item(value) for key, value in get(one).items()}
    step = _value_reader(field, made)
    if field.is_repeated:
        return lambda one: list(map(step, get(one)))
    if field.has_presence:
        return lambda one: step(get(one)) if one.HasField(name) else None
    return lambda one: step(get(one))


def _value_reader(field: Any, made: dict[str, Step]) -> Step:
    if field.message_type is not None:
        return protobuf_reader(field.message_type, made)
    if field.enum_type is not None:
        words = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        # A value that a newer schema has is kept as its number.
        return lambda value: words.get(value) or str(value)
    return lambda value: value


def _moment(message: Any) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        reason = f"{message.seconds} s from 1970 is no timestamp between the years 1 and 9999"
        raise UnfitError(reason) from None


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
        self._message = _found(config["message"], config["descriptor.file"])
        self._serde = ProtobufSerde(self._message)
        self._schema = schema_from_protobuf(self._message)
        self._read = protobuf_reader(self._message.DESCRIPTOR)

    def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        """Write a value, equal ones as equal bytes; null has no body."""
        if value is None:
            return None
        message = self._message()
        fill(message, value)
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
        return Converted(self._schema, self._read(message))

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
