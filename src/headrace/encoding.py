r"""Self-describing bytes for plain data: one tag byte, then a payload that runs to the end.

Keys (:mod:`headrace.keys`) and the default serde (:data:`headrace.serdes.plain`) share this format:

=======  ==================  ====================================================================
tag      type                payload
=======  ==================  ====================================================================
``N``    ``None``            empty
``T F``  ``bool``            empty
``i``    ``int``             two's complement, big-endian, ``bit_length // 8 + 1`` bytes
``f``    ``float``           IEEE 754 double, big-endian
``s``    ``str``             UTF-8 (a lone surrogate as its three bytes)
``b``    ``bytes``           as they are
``d``    ``Decimal``         its text
``D``    ``date``            ISO 8601
``t``    ``datetime``        ISO 8601, with the offset from UTC where there is one
``h``    ``time``            ISO 8601
``e``    ``timedelta``       microseconds, as an ``int``'s payload
``u``    ``UUID``            16 bytes
``(``    ``tuple``           the items
``[``    ``list``            the items
``<``    ``set``             the items, sorted by their bytes
``>``    ``frozenset``       the items, sorted by their bytes
``{``    ``dict``            key, value, key, value, ...
=======  ==================  ====================================================================

Items stand end to end, each behind its length (LEB128: seven bits per byte, low ones first).

The *exact* form writes a dict with text for keys, or a list, as MessagePack where that loses nothing
(all in it is None, bool, int of 64 bits, float, str, bytes, or such a container): ten times as fast,
and its first byte, 0x80 or more, is none of these tags.  It keeps what Python tells apart: the order of a dict, ``-0.0``, ``Decimal("1.00")``,
the offset of a datetime (not its ``fold``).  The *canonical* form gives equal values of one type equal bytes: dicts
are sorted by the bytes of their keys, ``-0.0`` is ``0.0``, every NaN is one NaN, decimals lose
trailing zeros, and datetimes with an offset are moved to UTC.  Both are read the same way.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.errors import DeserializationError, SerializationError

_DOUBLE = struct.Struct(">d")
_NAN = b"f" + _DOUBLE.pack(math.nan)
_MICROSECOND = timedelta(microseconds=1)
_SHORT_LENGTHS = [bytes([size]) for size in range(128)]
_PACK: Final = msgspec.msgpack.Encoder().encode
_UNPACK: Final = msgspec.msgpack.Decoder(dict[str, Any] | list[Any]).decode
#: The least first byte of what MessagePack wrote.
_PACKED: Final = b"\x80"
#: Types that MessagePack tells apart and reads back as they were.
_SINGLE = frozenset({type(None), bool, int, float, str, bytes})
_CONTAINERS = frozenset({dict, list})
_TEXT = frozenset({str})
#: Containers in containers that are looked into before it is packed: one may be in itself.
_DEEPEST = 20

Writer = Callable[[Any], bytes]


def encode_exact(value: object) -> bytes:
    r"""Encode plain data so that it reads back as it was.

    Raises
    ------
    SerializationError
        The value, or something in it, is not plain data.

    Examples
    --------
    >>> encode_exact("word"), encode_exact(300), encode_exact(("a", True))
    (b'sword', b'i\x01,', b'(\x02sa\x01T')
    """
    writer = _EXACT.get(type(value))
    if writer is None:
        raise _not_plain(value)
    return writer(value)


def encode_exact_many(values: list[Any]) -> list[bytes]:
    """Encode many values as :func:`encode_exact` does each.

    Raises
    ------
    SerializationError
        One of them, or something in it, is not plain data.

    Examples
    --------
    >>> values = [{"a": 1}, {"a": [2.5, None]}]
    >>> encode_exact_many(values) == [encode_exact(value) for value in values]
    True
    """
    if _CONTAINERS.issuperset(map(type, values)) and _packs(values):
        try:
            return list(map(_PACK, values))
        except (OverflowError, UnicodeEncodeError):
            pass
    return list(map(encode_exact, values))


def encode_canonical(value: object) -> bytes:
    """Encode plain data so that equal values of one type have equal bytes.

    Raises
    ------
    SerializationError
        The value, or something in it, is not plain data.

    Examples
    --------
    >>> encode_canonical({"b": 1, "a": 2}) == encode_canonical({"a": 2, "b": 1})
    True
    >>> len({encode_canonical(key) for key in (1, 1.0, True)})
    3
    """
    writer = _CANONICAL.get(type(value))
    if writer is None:
        raise _not_plain(value)
    return writer(value)


def decode(data: bytes) -> Any:
    """Read what :func:`encode_exact` or :func:`encode_canonical` wrote.

    Raises
    ------
    DeserializationError
        The bytes are not in this format.

    Examples
    --------
    >>> decode(encode_exact({"a": [1, 2.5, None]}))
    {'a': [1, 2.5, None]}
    """
    try:
        return _read(data)
    except _UNREADABLE as e:
        message = f"these bytes are not encoded plain data: {data[:60]!r} ({type(e).__name__}: {e})"
        raise DeserializationError(
            message, hint="read them with the serde that they were written with"
        ) from e


def decode_many(data: list[bytes]) -> list[Any]:
    """Read many values as :func:`decode` does each.

    Raises
    ------
    DeserializationError
        Some bytes are not in this format.

    Examples
    --------
    >>> decode_many([encode_exact({"a": 1}), encode_exact("b")])
    [{'a': 1}, 'b']
    """
    if all(map(_PACKED.__le__, data)):
        try:
            return list(map(_UNPACK, data))
        except msgspec.DecodeError:
            pass
    return list(map(decode, data))


def _not_plain(value: object) -> SerializationError:
    kind = type(value)
    bases = [base.__name__ for base in kind.__mro__[1:] if base in PLAIN_TYPES]
    advice = f"convert it, e.g. with {bases[0]}(value), or " if bases else ""
    return SerializationError(
        f"{kind.__module__}.{kind.__qualname__} is not plain data: {value!r:.100}",
        hint=f"{advice}annotate the function that makes it (-> {kind.__name__}), or name a serde"
        f" (serde=serdes.json_of({kind.__name__}), for example); keys must be plain data",
    )


def _packs(values: Iterable[Any]) -> bool:
    """Return whether MessagePack preserves dicts and lists as they are, level by level."""
    level = list(values)
    for _ in range(_DEEPEST):
        dicts = [value for value in level if type(value) is dict]
        if not _TEXT.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        lists = [value for value in level if type(value) is list]
        contents = chain(map(dict.values, dicts), lists)
        items = list(chain.from_iterable(contents))
        kinds = set(map(type, items))
        if _SINGLE.issuperset(kinds):
            return True
        if not kinds <= _SINGLE | _CONTAINERS:
            return False
        level = [item for item in items if type(item) in _CONTAINERS]
    return False


def _packed_or(tag: bytes, value: Any, items: Iterable[Any]) -> bytes:
    if _packs((value,)):
        try:
            return _PACK(value)
        except (OverflowError, UnicodeEncodeError):
            pass
    return _joined(tag, map(encode_exact, items))


def _int_payload(value: int) -> bytes:
    return value.to_bytes((value.bit_length() >> 3) + 1, "big", signed=True)


def _length(size: int) -> bytes:
    if size < 128:
        return _SHORT_LENGTHS[size]
    pieces = bytearray()
    while size > 127:
        pieces.append(size & 127 | 128)
        size >>= 7
    pieces.append(size)
    return bytes(pieces)


def _joined(tag: bytes, encoded: Iterable[bytes]) -> bytes:
    pieces = [tag]
    for item in encoded:
        size = len(item)
        pieces.append(_SHORT_LENGTHS[size] if size < 128 else _length(size))
        pieces.append(item)
    return b"".join(pieces)


def _text(value: str) -> bytes:
    try:
        return b"s" + value.encode()
    except UnicodeEncodeError:
        return b"s" + value.encode("utf-8", "surrogatepass")


def _canonical_float(value: float) -> bytes:
    return _NAN if value != value else b"f" + _DOUBLE.pack(value + 0.0)  # noqa: PLR0124 - NaN


def _canonical_decimal(value: Decimal) -> bytes:
    if not value.is_finite():
        return b"d" + str(value).encode()
    sign, digits, exponent = value.as_tuple()
    kept = len(digits)
    while kept and digits[kept - 1] == 0:
        kept -= 1
    if not kept:
        return b"d0"
    assert isinstance(exponent, int)
    short = Decimal((sign, digits[:kept], exponent + len(digits) - kept))
    return b"d" + str(short).encode()


def _canonical_datetime(value: datetime) -> bytes:
    return b"t" + (value if value.tzinfo is None else value.astimezone(UTC)).isoformat().encode()


_ATOMS: dict[type, Writer] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: lambda value: b"i" + value.to_bytes((value.bit_length() >> 3) + 1, "big", signed=True),
    float: lambda value: b"f" + _DOUBLE.pack(value),
    str: _text,
    bytes: lambda value: b"b" + value,
    Decimal: lambda value: b"d" + str(value).encode(),
    date: lambda value: b"D" + value.isoformat().encode(),
    datetime: lambda value: b"t" + value.isoformat().encode(),
    time: lambda value: b"h" + value.isoformat().encode(),
    timedelta: lambda value: b"e" + _int_payload(value // _MICROSECOND),
    UUID: lambda value: b"u" + value.bytes,
}

_EXACT: dict[type, Writer] = {
    **_ATOMS,
    tuple: lambda items: _joined(b"(", map(encode_exact, items)),
    list: lambda items: _packed_or(b"[", items, items),
    set: lambda items: _joined(b"<", sorted(map(encode_exact, items))),
    frozenset: lambda items: _joined(b">", sorted(map(encode_exact, items))),
    dict: lambda items: _packed_or(b"{", items, _flat(items.items())),
}

_CANONICAL: dict[type, Writer] = {
    **_ATOMS,
    float: _canonical_float,
    Decimal: _canonical_decimal,
    datetime: _canonical_datetime,
    tuple: lambda items: _joined(b"(", map(encode_canonical, items)),
    list: lambda items: _joined(b"[", map(encode_canonical, items)),
    set: lambda items: _joined(b"<", sorted(map(encode_canonical, items))),
    frozenset: lambda items: _joined(b">", sorted(map(encode_canonical, items))),
    dict: lambda items: _joined(
        b"{",
        _flat(sorted((encode_canonical(k), encode_canonical(v)) for k, v in items.items())),
    ),
}

PLAIN_TYPES: frozenset[type] = frozenset(_EXACT)
"""The types of plain data; containers are plain where everything in them is."""


def _flat(pairs: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
    for key, value in pairs:
        yield key
        yield value


def _read(data: bytes) -> Any:
    return _READERS[data[0]](data)


def _items(data: bytes) -> Iterator[Any]:
    at, end = 1, len(data)
    while at < end:
        size = data[at]
        at += 1
        if size > 127:
            size, at = _long_length(data, at - 1)
        stop = at + size
        if stop > end:
            message = f"an item of {size} bytes runs over the end"
            raise ValueError(message)
        piece = data[at:stop]
        yield _READERS[piece[0]](piece)
        at = stop


def _long_length(data: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 127) << shift
        if byte < 128:
            return size, at
        shift += 7


def _read_dict(data: bytes) -> dict[Any, Any]:
    items = _items(data)
    return dict(zip(items, items, strict=True))


def _constant(value: object) -> Callable[[bytes], Any]:
    def read(data: bytes) -> object:
        if len(data) != 1:
            message = "a constant has no payload"
            raise ValueError(message)
        return value

    return read


def _read_int(data: bytes) -> int:
    if len(data) == 1:
        message = "an int has at least one byte"
        raise ValueError(message)
    return int.from_bytes(data[1:], "big", signed=True)


def _read_text(data: bytes) -> str:
    try:
        return str(data[1:], "utf-8")
    except UnicodeDecodeError:
        return str(data[1:], "utf-8", "surrogatepass")


_READERS: dict[int, Callable[[bytes], Any]] = {
    ord("N"): _constant(None),
    ord("T"): _constant(value=True),
    ord("F"): _constant(value=False),
    ord("i"): _read_int,
    ord("f"): lambda data: _DOUBLE.unpack(data[1:])[0],
    ord("s"): _read_text,
    ord("b"): lambda data: data[1:],
    ord("d"): lambda data: Decimal(data[1:].decode()),
    ord("D"): lambda data: date.fromisoformat(data[1:].decode()),
    ord("t"): lambda data: datetime.fromisoformat(data[1:].decode()),
    ord("h"): lambda data: time.fromisoformat(data[1:].decode()),
    ord("e"): lambda data: timedelta(microseconds=_read_int(data)),
    ord("u"): lambda data: UUID(bytes=data[1:]),
    ord("("): lambda data: tuple(_items(data)),
    ord("["): lambda data: list(_items(data)),
    ord("<"): lambda data: set(_items(data)),
    ord(">"): lambda data: frozenset(_items(data)),
    ord("{"): _read_dict,
    # Maps and arrays of MessagePack.
    **dict.fromkeys([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF], _UNPACK),
}

_UNREADABLE = (
    ArithmeticError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.DecodeError,
    struct.error,
)
