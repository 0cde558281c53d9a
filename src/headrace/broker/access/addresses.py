"""Patterns of client addresses, as RocketMQ's white lists write them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from headrace.errors import SettingsError

__all__ = ["AddressPattern", "address_pattern"]

AddressPattern = Callable[[str], bool]
"""Tells whether an address is meant."""

_PART = re.compile(r"\*|\d{1,3}(-\d{1,3})?|\{\d{1,3}(,\d{1,3})*\}")


def address_pattern(text: str) -> AddressPattern:
    """Read a pattern.

    ``*`` is every address and an empty pattern none.  ``10.0.0.*``, ``10.0.0.1-9``,
    ``10.0.0.{1,7}``, ``10.0.0.1,10.0.0.2`` and networks such as ``10.0.0.0/8`` are what else there
    is; an address of version 6 is written whole, or as a network.

    Raises
    ------
    SettingsError
        When it is none of these.

    Examples
    --------
    >>> inside = address_pattern("192.168.0.1-20")
    >>> inside("192.168.0.7"), inside("192.168.0.21")
    (True, False)
    """
    text = text.strip()
    if text == "*":
        return lambda _: True
    if not text:
        return lambda _: False
    pieces = [text] if "{" in text else [piece.strip() for piece in text.split(",")]
    patterns = [_single(piece, text) for piece in pieces]
    return lambda address: any(matches(address) for matches in patterns)


def _single(piece: str, whole: str) -> AddressPattern:
    parts = piece.split(".")
    if len(parts) == 4 and "/" not in piece and all(map(_PART.fullmatch, parts)):
        ranges = [_numbers(part) for part in parts]
        return lambda address: _in_ranges(address, ranges)
    try:
        network = ipaddress.ip_network(piece, strict=False)
    except ValueError:
        message = f"{whole!r} is no pattern of addresses"
        hint = "Write 10.0.0.7, 10.0.0.*, 10.0.0.1-9, 10.0.0.{1,7}, 10.0.0.0/8 or *."
        raise SettingsError(message, hint=hint) from None
    return lambda address: ipaddress.ip_address(address) in network


def _numbers(part: str) -> frozenset[int]:
    if part == "*":
        return frozenset(range(256))
    if part.startswith("{"):
        return frozenset(map(int, part[1:-1].split(",")))
    first, _, last = part.partition("-")
    return frozenset(range(int(first), int(last or first) + 1))


def _in_ranges(address: str, ranges: list[frozenset[int]]) -> bool:
    parts = address.split(".")
    if len(parts) != 4:
        return False
    return all(int(part) in allowed for part, allowed in zip(parts, ranges, strict=True))
