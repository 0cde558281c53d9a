r"""Keys: one canonical encoding, one hash, one way to travel with a message.

The canonical bytes of a key are hashed and compared, never the Python object: ``1``, ``1.0`` and
``True`` are three keys, the order of a dict plays no part.  The format is that of
:mod:`headrace.encoding` in its canonical form: for a ``str`` the letter ``s`` and its UTF-8, so
``"word"`` is ``b"sword"``.  A key is plain data: None, bool, int, float, str, bytes, Decimal, date,
time, datetime, timedelta, UUID, and tuples, lists, dicts and sets of these.

The hash is the CRC-32 of the canonical bytes (:func:`zlib.crc32`), and partition or queue is the
hash modulo their number: the same in every process and release.

With a message, a key travels as text in the property ``KEYS`` when it is a ``str`` that fits
there: not empty, at most 8 KiB, without the separators ``\x01`` and ``\x02``.  Any other key
travels as the hex of its canonical bytes in ``HEADRACE_KEY``, and ``KEYS`` holds the same hex (its
SHA-256 where that is too long), so that indexes and compaction see it.  None means no key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.encoding import decode, decode_many, encode_canonical
from headrace.errors import DeserializationError, SerializationError

KEYS = "KEYS"
"""RocketMQ's property for a message's keys."""

EXACT_KEY = "HEADRACE_KEY"
"""Property that holds the hex of the canonical bytes where ``KEYS`` cannot hold the key."""

MAX_KEY_SIZE = 12 << 10
"""Canonical bytes of a key that is not text; all properties of a message share 32,767 bytes."""

_TEXT_LIMIT = 8 << 10
#: The offsets of an Arrow column are 32-bit numbers.
_MOST_HEX = (1 << 31) - 1


def encode_key(key: object) -> bytes:
    r"""Return the canonical bytes of a key.

    Raises
    ------
    SerializationError
        The key is not plain data.

    Examples
    --------
    >>> encode_key("word"), encode_key(1), encode_key(True)
    (b'sword', b'i\x01', b'T')
    """
    return encode_canonical(key)


def decode_key(data: bytes) -> Any:
    """Read a key back from its canonical bytes.

    Raises
    ------
    DeserializationError
        The bytes are not a key.

    Examples
    --------
    >>> decode_key(encode_key(("a", 1)))
    ('a', 1)
    """
    return decode(data)


def encode_keys(keys: list[Any]) -> list[bytes]:
    """Return the canonical bytes of many keys.

    Examples
    --------
    >>> encode_keys(["a", "b"])
    [b'sa', b'sb']
    """
    if set(map(type, keys)) == {str}:
        # One big encode and split take half the time of one small encode per key.
        try:
            pieces = ("s" + "\0s".join(keys)).encode().split(b"\0")
        except UnicodeEncodeError:
            pieces = []
        if len(pieces) == len(keys):
            return pieces
    return list(map(encode_canonical, keys))


def decode_keys(keys: list[bytes]) -> list[Any]:
    r"""Read many keys back from their canonical bytes.

    Examples
    --------
    >>> decode_keys([b"sa", b"i\x07"])
    ['a', 7]
    """
    blob = _text_blob(keys)
    if blob is not None:
        try:
            return blob[2:].decode().split("\0s")
        except UnicodeDecodeError:
            pass
    return decode_many(keys)


def _text_blob(keys: list[bytes]) -> bytes | None:
    """Join keys, each behind a zero byte, if all are text without a zero byte of their own."""
    if not keys or keys[0][:1] != b"s":
        return None
    blob = b"\0" + b"\0".join(keys)
    return blob if blob.count(b"\0s") == len(keys) == blob.count(b"\0") else None


def key_hash(key: bytes) -> int:
    """Hash the canonical bytes of a key.

    Examples
    --------
    >>> key_hash(encode_key("word"))
    2598749967
    """
    return crc32(key)


def key_hashes(keys: list[bytes]) -> npt.NDArray[np.uint32]:
    """Hash the canonical bytes of many keys."""
    return np.fromiter(map(crc32, keys), np.uint32, len(keys))


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition, or queue, of a key's canonical bytes.

    Examples
    --------
    >>> partition_of(encode_key("word"), 8)
    7
    """
    return crc32(key) % partitions


def partitions_of(keys: list[bytes], partitions: int) -> npt.NDArray[np.int64]:
    """Return the partitions, or queues, of many keys' canonical bytes."""
    return key_hashes(keys).astype(np.int64) % partitions


def hex_key(key: bytes) -> str:
    """Return the hex of a key's canonical bytes, or their SHA-256 in hex where that is too long.

    Examples
    --------
    >>> hex_key(encode_key("word")), len(hex_key(encode_key("w" * 10_000)))
    ('73776f7264', 64)
    """
    if 2 * len(key) <= _TEXT_LIMIT:
        return key.hex()
    return hashlib.sha256(key).hexdigest()


def hex_keys(keys: list[bytes]) -> pa.BinaryArray | None:
    """Return the hex of many keys' canonical bytes; None where one is too long for that.

    Examples
    --------
    >>> hex_keys([b"ab", b"c"]).to_pylist()
    [b'6162', b'63']
    """
    sizes = np.fromiter(map(len, keys), np.int64, len(keys))
    ends = 2 * np.cumsum(sizes)
    if len(keys) and (2 * int(sizes.max()) > _TEXT_LIMIT or ends[-1] > _MOST_HEX):
        return None
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    data = b"".join(keys).hex().encode()
    return pa.Array.from_buffers(
        pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def properties_of_key(key: object) -> dict[str, str]:
    """Return the message properties in which a key travels.

    Raises
    ------
    SerializationError
        The key is not plain data, or longer than :data:`MAX_KEY_SIZE`.

    Examples
    --------
    >>> properties_of_key("word"), properties_of_key(1), properties_of_key(None)
    ({'KEYS': 'word'}, {'KEYS': '6901', 'HEADRACE_KEY': '6901'}, {})
    """
    if key is None:
        return {}
    if isinstance(key, str) and _travels_as_text(key):
        return {KEYS: key}
    data = encode_canonical(key)
    if len(data) > MAX_KEY_SIZE:
        raise SerializationError(
            f"a key of {len(data):,} bytes does not fit the properties of a message, which take"
            f" {MAX_KEY_SIZE:,}: {key!r:.60}",
            hint="key by something shorter, e.g. a digest",
        )
    return {KEYS: hex_key(data), EXACT_KEY: data.hex()}


def _travels_as_text(key: str) -> bool:
    if not key or "\1" in key or "\2" in key:
        return False
    try:
        return len(key.encode()) <= _TEXT_LIMIT
    except UnicodeEncodeError:
        return False


def key_from_properties(properties: Mapping[str, str]) -> Any:
    """Read the key of a message from its properties; None where it has none.

    Raises
    ------
    DeserializationError
        ``HEADRACE_KEY`` holds no key.

    Examples
    --------
    >>> key_from_properties(properties_of_key(("a", 1)))
    ('a', 1)
    >>> key_from_properties({"KEYS": "word"}), key_from_properties({})
    ('word', None)
    """
    exact = properties.get(EXACT_KEY)
    return properties.get(KEYS) if exact is None else _from_hex(exact)


def _from_hex(text: str) -> Any:
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise DeserializationError(
            f"property {EXACT_KEY} is not hex: {text[:60]!r}",
            hint="a key that is not text stands there as the hex of its canonical bytes",
        ) from error
    return decode(data)


def text_or_bytes(key: bytes) -> str | bytes:
    r"""Return a key as text, or as it is where it is not text.

    >>> text_or_bytes(b"a"), text_or_bytes(b"\xff")
    ('a', b'\xff')
    """
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key


def key_properties(keys: list[Any], encoded: list[bytes]) -> list[bytes]:
    r"""Return the property bytes (``name\x01value\x02`` ...) in which many keys travel.

    Parameters
    ----------
    keys
        The keys.
    encoded
        Their canonical bytes, in the same order.

    Examples
    --------
    >>> key_properties(["a", None], encode_keys(["a", None]))
    [b'KEYS\x01a\x02', b'']
    """
    blob = _text_blob(encoded)
    if blob is not None and _all_travel_as_text(blob, encoded):
        return (blob[2:].replace(b"\0s", b"\2\0KEYS\1").join((b"KEYS\1", b"\2"))).split(b"\0")
    return [
        "".join(f"{name}\1{value}\2" for name, value in properties_of_key(key).items()).encode()
        for key in keys
    ]


def _all_travel_as_text(blob: bytes, encoded: list[bytes]) -> bool:
    if b"\1" in blob or b"\2" in blob or b"\0s\0" in blob or blob.endswith(b"\0s"):
        return False
    if len(blob) > _TEXT_LIMIT and max(map(len, encoded)) > _TEXT_LIMIT + 1:
        return False
    try:
        blob.decode()
    except UnicodeDecodeError:
        return False
    return True


def keys_from_columns(keys: pa.BinaryArray, exact: pa.BinaryArray) -> list[Any]:
    """Read the keys of many messages from the columns of ``KEYS`` and ``HEADRACE_KEY``.

    Parameters
    ----------
    keys, exact
        One value per message, null where the property is absent.

    Raises
    ------
    DeserializationError
        A ``HEADRACE_KEY`` holds no key.
    """
    texts = _texts(keys)
    if exact.null_count == len(exact):
        return texts
    return [
        text if data is None else _from_hex(data.decode("ascii", "replace"))
        for text, data in zip(texts, exact.to_pylist(), strict=True)
    ]


def _texts(column: pa.BinaryArray) -> list[str | None]:
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        # Not ours: keep what is not UTF-8 apart instead of losing it.
        return [
            None if text is None else text.decode("utf-8", "surrogateescape")
            for text in column.to_pylist()
        ]
    return texts
