"""Ids of messages: where a broker stored it, and the one that its producer gave it."""

from __future__ import annotations

import itertools
import os
import secrets
import struct
import time
from functools import lru_cache
from ipaddress import ip_address

from headrace.errors import ProtocolError

# Hosts as stored records hold them: an IP address and a four-byte port.

#: IP address and port.
Host = tuple[str, int]

LOCALHOST: Host = ("127.0.0.1", 0)
_PORT = struct.Struct(">i")


@lru_cache(maxsize=4096)
def pack_host(host: Host) -> bytes:
    """Write a host in 8 bytes (IPv4) or 20 (IPv6).

    Raises
    ------
    ProtocolError
        The host's name is no IP address.

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
    """Name a stored message by its broker's address and its place in the commit log.

    >>> encode_offset_id(("127.0.0.1", 9876), 42)
    '7F00000100002694000000000000002A'
    """
    return (pack_host(store_host) + position.to_bytes(8, signed=True)).hex().upper()


def decode_offset_id(offset_id: str) -> tuple[Host, int]:
    """Read broker address and place out of an offset id.

    Raises
    ------
    ProtocolError
        The text is no offset id.

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
