"""Properties of a message: names with values, as one string on the wire.

Each is ``name 0x01 value 0x02``.  Of equal names the last one counts; a pair without a name or
without a value does not count at all.
"""

from __future__ import annotations

import itertools
import os
import secrets
import struct
import time
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address

from headrace.errors import MessageRejectedError, ProtocolError

#: IP address and port; a stored record holds the port in four bytes.
Host = tuple[str, int]

LOCALHOST: Host = ("127.0.0.1", 0)
_PORT = struct.Struct(">i")


@lru_cache(maxsize=4096)
def pack_host(host: Host) -> bytes:
    """Write a host in 8 bytes (IPv4) or 20 (IPv6).

    Raises
    ------
    ProtocolError
        The host's name is not an IP address.

    Examples
    --------
    >>> pack_host(("127.0.0.1", 9876)).hex()
    '7f00000100002694'
    """
    address, port = host
    try:
        packed = ip_address(address).packed
        return packed + _PORT.pack(port)
    except (ValueError, struct.error) as error:
        raise ProtocolError(
            f"{address!r} with port {port!r} is no host: {error}",
            hint="records hold IP addresses, not names",
        ) from error


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> Host:
    """Read a host from 8 or 20 bytes.

    >>> unpack_host(bytes.fromhex("7f00000100002694"))
    ('127.0.0.1', 9876)
    """
    (port,) = _PORT.unpack_from(packed, len(packed) - _PORT.size)
    return str(ip_address(packed[: -_PORT.size])), port


def encode_offset_id(store_host: Host, position: int) -> str:
    """Return the id of a stored message: its broker's address and its place in the commit log.

    >>> encode_offset_id(("127.0.0.1", 9876), 42)
    '7F00000100002694000000000000002A'
    """
    return (pack_host(store_host) + position.to_bytes(8, signed=True)).hex().upper()


def decode_offset_id(offset_id: str) -> tuple[Host, int]:
    """Read broker address and place out of an offset id.

    Raises
    ------
    ProtocolError
        The text is not an offset id.

    Examples
    --------
    >>> decode_offset_id("7F00000100002694000000000000002A")
    (('127.0.0.1', 9876), 42)
    """
    try:
        packed = bytes.fromhex(offset_id)
    except ValueError:
        packed = b""
    if len(offset_id) not in (32, 56) or len(packed) not in (16, 28):
        raise ProtocolError(
            f"{offset_id[:64]!r} is no offset id: 32 or 56 hexadecimal digits are expected",
            hint="a UNIQ_KEY names a message, too, but not its place: query by key instead",
        )
    return unpack_host(packed[:-8]), int.from_bytes(packed[-8:], signed=True)


class UniqueKeys:
    """Makes the UNIQ_KEY of messages: 32 hexadecimal digits, never the same twice.

    They hold an IP address, process id, random bytes, the milliseconds since the month began
    and a counter, as Java producers' do.

    Parameters
    ----------
    address
        IPv4 address of the producer.

    Examples
    --------
    >>> keys = UniqueKeys()
    >>> len(keys.take()), keys.take() != keys.take()
    (32, True)
    """

    __slots__ = ("_address", "_counter", "_month", "_pid", "_prefix")

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address
        self._counter = itertools.count()
        self._pid = -1
        self._prefix = ""
        self._month = (0, 0)

    def take(self) -> str:
        """Make the next key."""
        pid = os.getpid()
        if pid != self._pid:
            # A forked child must not repeat its parent's keys.
            self._prefix = self._make_prefix(pid)
            self._pid = pid
        now = time.time_ns() // 1_000_000
        if not self._month[0] <= now < self._month[1]:
            self._month = _month_around(now)
        elapsed = now - self._month[0]
        return f"{self._prefix}{elapsed:08X}{next(self._counter) & 0xFFFF:04X}"

    def _make_prefix(self, pid: int) -> str:
        host = pack_host((self._address, 0))[:-4]
        return (host + (pid & 0xFFFF).to_bytes(2) + secrets.token_bytes(4)).hex().upper()


def _month_around(now: int) -> tuple[int, int]:
    """Begin and end of the local month, ms since 1970."""
    year, month = time.localtime(now // 1000)[:2]
    begin, end = (time.mktime((year, m, 1, 0, 0, 0, 0, 0, -1)) for m in (month, month + 1))
    return int(begin) * 1000, int(end) * 1000


KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
UNIQ_KEY = "UNIQ_KEY"
DELAY = "DELAY"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
SHARDING_KEY = "__SHARDINGKEY"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
CLUSTER = "CLUSTER"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
CONSUME_START_TIME = "CONSUME_START_TIME"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MSG_TYPE = "MSG_TYPE"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"

#: All names above.
NAMES = frozenset(
    value for name, value in globals().items() if name.isupper() and isinstance(value, str)
)

#: Longest properties string, in bytes: its length is a signed 16-bit number.
MAX_PROPERTIES = 32_767

_AFTER_NAME = "\x01"
_AFTER_VALUE = "\x02"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    r"""Write properties as one string.

    Raises
    ------
    MessageRejectedError
        A name or value is empty or holds one of the two separators, or all are too long.

    Examples
    --------
    >>> encode_properties({"KEYS": "k1"})
    b'KEYS\x01k1\x02'
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    plain = text.count(_AFTER_NAME) == count == text.count(_AFTER_VALUE)
    if not plain or "" in properties or "" in properties.values():
        _explain(properties)
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise MessageRejectedError(f"a property is not valid text: {error}") from error
    if len(encoded) > MAX_PROPERTIES:
        raise MessageRejectedError(
            f"the properties take {len(encoded)} bytes, {MAX_PROPERTIES} are possible",
            hint="put large values into the body",
        )
    return encoded


def _explain(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not name or not value:
            raise MessageRejectedError(
                f"property {name!r} has the value {value!r}: neither may be empty",
                hint="leave the property out",
            )
        if any(mark in name + value for mark in (_AFTER_NAME, _AFTER_VALUE)):
            raise MessageRejectedError(
                f"property {name!r} holds U+0001 or U+0002, which separate properties",
                hint="encode the value, for example as base64",
            )


def decode_properties(encoded: bytes | memoryview) -> dict[str, str]:
    r"""Read a properties string; bytes that are not UTF-8 become U+FFFD, as in Java.

    >>> decode_properties(b"KEYS\x01k1\x02TAGS\x01red\x02KEYS\x01k2\x02EMPTY\x01\x02")
    {'KEYS': 'k2', 'TAGS': 'red'}
    """
    properties: dict[str, str] = {}
    for pair in str(encoded, "utf-8", "replace").split(_AFTER_VALUE):
        name, _, value = pair.partition(_AFTER_NAME)
        if name and value:
            properties[name] = value
    return properties
