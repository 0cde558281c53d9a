"""Hosts as stored records hold them: an IP address and a four-byte port."""

from __future__ import annotations

import struct
from functools import lru_cache
from ipaddress import ip_address

from headrace.errors import ProtocolError

__all__ = ["LOCALHOST", "Host", "pack_host", "unpack_host"]

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
