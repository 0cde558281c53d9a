"""JSON bodies of requests and responses: typed values from bytes and back."""

from __future__ import annotations

from typing import TypeVar, cast, overload

import msgspec

from headrace.errors import ProtocolError
from headrace.protocol.fastjson import parse

__all__ = ["JsonBody", "QueueRef", "dumps", "loads"]

T = TypeVar("T")


class JsonBody(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Base of all JSON bodies: Python names here, Java's names on the wire.

    Tables have many of them, and none holds itself: nobody looks for garbage there.
    """


class QueueRef(msgspec.Struct, frozen=True, order=True, rename="camel", gc=False):
    """A queue as JSON bodies name it.

    As the key of a JSON object it is a string that holds its own JSON.

    >>> QueueRef("lines", "broker-a", 3).key
    '{"topic":"lines","brokerName":"broker-a","queueId":3}'
    >>> QueueRef.of_key('{"brokerName":"b","queueId":0,"topic":"T"}')
    QueueRef(topic='T', broker_name='b', queue_id=0)
    """

    topic: str = ""
    broker_name: str = ""
    queue_id: int = 0

    @property
    def key(self) -> str:
        """The queue's name as the key of a JSON object."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of_key(cls, key: str) -> QueueRef:
        """Read a queue from the key of a JSON object."""
        return loads(key, cls)


@overload
def loads(body: bytes | bytearray | memoryview | str) -> object: ...
@overload
def loads(body: bytes | bytearray | memoryview | str, kind: type[T]) -> T: ...
def loads(body: bytes | bytearray | memoryview | str, kind: type[T] | None = None) -> T | object:
    """Read a JSON body, strict or as fastjson writes it, into a value of the given type.

    Members that are missing or null take their defaults, unknown ones are left out.

    Raises
    ------
    ProtocolError
        The body is no JSON or does not have the type's shape.

    Examples
    --------
    >>> loads(b'{"queueId":4,"topic":"T",}', QueueRef).queue_id
    4
    """
    value = parse(body)
    if kind is None:
        return value
    try:
        return msgspec.convert(_without_nulls(value), kind, strict=False)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise ProtocolError(f"a body is no {kind.__name__}: {error}") from error


def dumps(value: object) -> bytes:
    """Write a JSON body; members that are None are left out.

    >>> dumps({"topic": "T", "remark": None})
    b'{"topic":"T"}'
    """
    return msgspec.json.encode(_without_nulls(msgspec.to_builtins(value)))


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return {k: _without_nulls(v) for k, v in members.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
