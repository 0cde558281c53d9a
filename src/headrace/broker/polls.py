"""Long polls: requests that wait for the next message of some queues."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

Queue = tuple[str, int]
"""A topic and a queue id."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True, eq=False)
class Poll:
    """One waiting request."""

    #: Queues whose next message ends the wait.
    queues: tuple[Queue, ...]
    #: Connection that asked.
    owner: int
    #: Answer the request from what is there now.
    wake: Callable[[], None]


class LongPolls:
    """All requests that wait for messages, by queue.

    Examples
    --------
    >>> polls = LongPolls()
    >>> poll = polls.add([("lines", 0), ("lines", 1)], owner=7, wake=lambda: None)
    >>> polls.arrived([("lines", 1)]) == [poll], len(polls)
    (True, 0)
    """

    def __init__(self) -> None:
        #: In the order in which they came: who has waited longest is answered first.
        self._by_queue: dict[Queue, dict[Poll, None]] = {}
        self._by_owner: dict[int, dict[Poll, None]] = {}
        self._count = 0

    @property
    def is_empty(self) -> bool:
        """Whether nobody waits; any thread may ask."""
        return not self._by_owner

    def __len__(self) -> int:
        return self._count

    def of(self, owner: int) -> int:
        """Count the requests of a connection that wait."""
        return len(self._by_owner.get(owner, ()))

    def add(self, queues: Iterable[Queue], *, owner: int, wake: Callable[[], None]) -> Poll:
        """Let a request wait."""
        poll = Poll(tuple(queues), owner, wake)
        for queue in poll.queues:
            self._by_queue.setdefault(queue, {})[poll] = None
        self._by_owner.setdefault(owner, {})[poll] = None
        self._count += 1
        return poll

    def arrived(self, queues: Collection[Queue]) -> list[Poll]:
        """Take out the requests that waited for a message of these queues."""
        if not self._by_queue:
            return []
        waiting: dict[Poll, None] = {}
        for queue in queues:
            waiting |= self._by_queue.get(queue, {})
        return [poll for poll in waiting if self.remove(poll)]

    def remove(self, poll: Poll) -> bool:
        """Take out one request; False when it no longer waits."""
        owned = self._by_owner.get(poll.owner)
        if owned is None or poll not in owned:
            return False
        _discard(self._by_owner, poll.owner, poll)
        self._count -= 1
        for queue in poll.queues:
            _discard(self._by_queue, queue, poll)
        return True

    def abandon(self, owner: int) -> None:
        """Take out every request of a connection that is gone."""
        for poll in list(self._by_owner.get(owner, ())):
            self.remove(poll)


def _discard(table: dict[K, dict[Poll, None]], key: K, poll: Poll) -> None:
    polls = table.get(key)
    if polls is not None:
        polls.pop(poll, None)
        if not polls:
            del table[key]
