"""Values as messages of Protobuf, and back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from headrace.connect.converters.protobuf_schemas import TIMESTAMP_MESSAGE, WRAPPERS, is_map
from headrace.connect.converters.steps import UnfitError, kind_of

if TYPE_CHECKING:
    from google.protobuf.message import Message


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
    if name == TIMESTAMP_MESSAGE:
        _fill_timestamp(message, value)
    elif name in WRAPPERS:
        _set(message, message.DESCRIPTOR.fields_by_name["value"], value)
        # A message that was touched is there, also where its value is 0.
        message.SetInParent()
    else:
        _fill_fields(message, value)


def _fill_fields(message: Message, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(message.DESCRIPTOR.full_name, value)
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
    if is_map(field):
        _fill_map(getattr(message, field.name), field, value)
    elif field.is_repeated:
        _fill_list(getattr(message, field.name), field, value)
    elif field.message_type is not None:
        fill(getattr(message, field.name), value)
    else:
        _set(message, field, value)


def _fill_list(items: Any, field: Any, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise _wrong("list", value)
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
        raise _wrong("map", value)
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
    number = isinstance(value, bool) and field.type != FieldDescriptor.TYPE_BOOL
    if number or (field.type == FieldDescriptor.TYPE_BOOL and not isinstance(value, bool)):
        raise _wrong(_kind_name(field), value)
    if field.enum_type is not None and isinstance(value, str):
        found = field.enum_type.values_by_name.get(value)
        if found is None:
            words = ", ".join(field.enum_type.values_by_name)
            reason = f"{value!r:.60} is not one of {words}"
            raise UnfitError(reason)
        return found.number
    return value


def _kind_name(field: Any) -> str:
    return "bool" if field.type == FieldDescriptor.TYPE_BOOL else "number or text"


def _checked(act: Any, *arguments: Any) -> Any:
    try:
        return act(*arguments)
    except (TypeError, ValueError) as error:
        raise UnfitError(str(error)) from None


def _wrong(wanted: str, value: Any) -> UnfitError:
    return UnfitError(f"{wanted} is needed, not {kind_of(value)}")


def _fill_timestamp(message: Any, value: Any) -> None:
    if not isinstance(value, datetime):
        raise _wrong("a timestamp", value)
    if value.tzinfo is None:
        reason = "a timestamp needs a zone"
        raise UnfitError(reason, hint="give it one: value.replace(tzinfo=UTC)")
    microseconds = (value - _EPOCH) // _MICROSECOND
    message.seconds, rest = divmod(microseconds, 1_000_000)
    message.nanos = rest * 1000
    message.SetInParent()


def told(message: Message) -> Any:
    """Return the value that a message says; what finer than a microsecond is cut off.

    >>> from google.protobuf.wrappers_pb2 import StringValue
    >>> told(StringValue(value="tea"))
    'tea'
    """
    name = message.DESCRIPTOR.full_name
    if name == TIMESTAMP_MESSAGE:
        return _moment(message)
    if name in WRAPPERS:
        return message.value  # type: ignore[attr-defined]
    return {field.name: _told_field(message, field) for field in message.DESCRIPTOR.fields}


def _told_field(message: Message, field: Any) -> Any:
    if is_map(field):
        item = field.message_type.fields_by_name["value"]
        return {name: _told(item, one) for name, one in getattr(message, field.name).items()}
    if field.is_repeated:
        return [_told(field, one) for one in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _told(field, getattr(message, field.name))


def _told(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return told(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        # A value that a newer schema has is kept as its number.
        return str(value) if known is None else known.name
    return value


def _moment(message: Any) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    except OverflowError:
        reason = f"{message.seconds} s from 1970 is no timestamp between the years 1 and 9999"
        raise UnfitError(reason) from None
