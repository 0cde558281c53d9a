"""How the members of a consumer group share the queues of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from headrace.protocol.hashing import java_order

__all__ = ["Ordered", "average_rule"]


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
