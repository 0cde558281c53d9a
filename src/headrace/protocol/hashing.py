"""Java's string hash and string order: brokers compare tags and members by them."""

from __future__ import annotations

import struct

__all__ = ["java_hash", "java_order"]


def java_hash(text: str) -> int:
    """Hash a string as Java's ``String.hashCode`` does.

    >>> java_hash("TagA"), java_hash("polygenelubricants")
    (2598919, -2147483648)
    """
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - (1 << 32) if value & 0x8000_0000 else value


def java_order(text: str) -> bytes:
    r"""Make a sort key that orders strings as Java does, by UTF-16 code units.

    >>> sorted(["\uffff", "\U00010000"], key=java_order) == ["\U00010000", "\uffff"]
    True
    """
    return text.encode("utf-16-be", "surrogatepass")
