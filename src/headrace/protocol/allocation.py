"""How the members of a consumer group share the queues of a topic."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

# Java's string hash and string order: brokers compare tags and members by them.


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


class Ordered(Protocol):
    """Anything that can be sorted."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether this comes before the other."""
        ...


Q = TypeVar("Q", bound=Ordered)


def average_rule(queues: Iterable[Q], client_ids: Iterable[str], me: str) -> Sequence[Q]:
    """Work out which queues one member reads: RocketMQ's rule "AVG".

    All members must reach the same result, Java's included, so it depends on nothing but the
    arguments.

    Parameters
    ----------
    queues
        Queues of one topic; they sort by topic, broker name and queue id.
    client_ids
        Ids of all members.
    me
        Id of the member in question.  A member that is not among all gets nothing.

    Examples
    --------
    >>> [average_rule(range(7), ["a", "b", "c"], me) for me in "abc"]
    [[0, 1, 2], [3, 4], [5, 6]]
    """
    ids = sorted(set(client_ids), key=java_order)
    if me not in ids:
        return []
    ordered = sorted(queues)
    share, rest = divmod(len(ordered), len(ids))
    index = ids.index(me)
    start = index * share + min(index, rest)
    return ordered[start : start + share + (index < rest)]
