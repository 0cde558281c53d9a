"""JSON bodies of requests and responses: typed values from bytes and back."""

from __future__ import annotations

import re
from typing import TypeVar, cast, overload

import msgspec

from headrace.errors import ProtocolError

# JSON as Java's fastjson writes it: also with bare keys and with objects as keys.
#
# A key that is not a string becomes its compact JSON text, which is what a strict writer puts
# there: ``{{"queueId":0}:1}`` and ``{"{\"queueId\":0}":1}`` read the same.

_MAX_DEPTH = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[^\s,:{}\[\]\"']+")
_PLAIN = re.compile(r"[^\"'\\]*")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "F": "\f"}
_HEX_ESCAPES = {"u": 4, "x": 2}
_LITERALS: dict[str, object] = {"true": True, "false": False, "null": None, "NaN": None}


def parse(data: bytes | bytearray | memoryview | str) -> object:
    """Read one JSON value, strict or as fastjson writes it.

    Raises
    ------
    ProtocolError
        The text is neither.

    Examples
    --------
    >>> parse(b'{0:"127.0.0.1:10911"}')
    {'0': '127.0.0.1:10911'}
    >>> parse(b'{{"queueId":0}:{"offset":5}}')
    {'{"queueId":0}': {'offset': 5}}
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = data if isinstance(data, str) else str(data, "utf-8", "replace")
    return _Parser(text).document()


class _Parser:
    __slots__ = ("_at", "_depth", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def document(self) -> object:
        value = self._value()
        if self._peek():
            raise self._error("more text after the value")
        return value

    def _error(self, what: str) -> ProtocolError:
        around = self._text[max(0, self._at - 20) : self._at + 20]
        return ProtocolError(f"a JSON body cannot be read: {what} at {self._at}, near {around!r}")

    def _peek(self) -> str:
        space = _SPACE.match(self._text, self._at)
        if space is not None:
            self._at = space.end()
        return self._text[self._at : self._at + 1]

    def _take(self, mark: str) -> bool:
        if self._peek() != mark:
            return False
        self._at += 1
        return True

    def _value(self) -> object:
        start = self._peek()
        if start in ('"', "'") and start:
            return self._string(start)
        if start not in ("{", "["):
            return self._word()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} levels")
        self._at += 1
        value: object = self._members() if start == "{" else self._items()
        self._depth -= 1
        return value

    def _members(self) -> dict[str, object]:
        members: dict[str, object] = {}
        while not self._take("}"):
            key = self._value()
            if not self._take(":"):
                raise self._error("no colon after a key")
            name = key if isinstance(key, str) else msgspec.json.encode(key).decode()
            members[name] = self._value()
            if not self._take(",") and self._peek() != "}":
                raise self._error("neither comma nor brace after a member")
        return members

    def _items(self) -> list[object]:
        items: list[object] = []
        while not self._take("]"):
            items.append(self._value())
            if not self._take(",") and self._peek() != "]":
                raise self._error("neither comma nor bracket after an item")
        return items

    def _word(self) -> object:
        match = _WORD.match(self._text, self._at)
        if match is None:
            raise self._error("no value")
        word = match.group()
        self._at = match.end()
        if word in _LITERALS:
            return _LITERALS[word]
        try:
            return msgspec.json.decode(word)
        except (msgspec.MsgspecError, UnicodeEncodeError):
            if self._peek() == ":":
                return word
            raise self._error(f"{word[:20]!r} is no value") from None

    def _string(self, quote: str) -> str:
        self._at += 1
        pieces: list[str] = []
        while True:
            plain = _PLAIN.match(self._text, self._at)
            if plain is not None:
                pieces.append(plain.group())
                self._at = plain.end()
            mark = self._text[self._at : self._at + 1]
            if not mark:
                raise self._error("a string without end")
            self._at += 1
            if mark == quote:
                # Escaped surrogate pairs arrive as two units: join them, and mend lone ones.
                joined = "".join(pieces).encode("utf-16-be", "surrogatepass")
                return joined.decode("utf-16-be", "replace")
            pieces.append(self._escape() if mark == "\\" else mark)

    def _escape(self) -> str:
        mark = self._text[self._at : self._at + 1]
        self._at += 1
        if mark not in _HEX_ESCAPES:
            return _ESCAPES.get(mark, mark)
        digits = self._text[self._at : self._at + _HEX_ESCAPES[mark]]
        self._at += len(digits)
        if not re.fullmatch(f"[0-9a-fA-F]{{{_HEX_ESCAPES[mark]}}}", digits):
            raise self._error("a broken escape")
        return chr(int(digits, 16))


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
