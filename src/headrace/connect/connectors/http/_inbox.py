"""What requests brought and is not committed yet, and who waits for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import Any

_REMEMBERED = 10_000


class InboxFullError(Exception):
    """As much waits for its commit as may."""


@dataclass(slots=True, kw_only=True)
class Arrival:
    """The records of one request."""

    values: Sequence[Any]
    key: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    #: What the client calls the request, so that it can send it again.
    name: str | None = None
    #: Number of the last record.
    last: int = 0
    committed: bool = False
    #: Those who wait, each with its loop.
    waiting: list[asyncio.Future[bool]] = field(default_factory=list)


class Inbox:
    """Hands requests from the server's thread to the task's, and commits back.

    Parameters
    ----------
    number
        Number of the last record that was committed before.
    most
        Records that may wait for their commit.
    """

    def __init__(self, number: int, most: int) -> None:
        self._number = number
        self._most = most
        self._pending = 0
        self._fresh: deque[Arrival] = deque()
        self._given: deque[Arrival] = deque()
        self._named: OrderedDict[str, Arrival] = OrderedDict()
        self._changed = Condition()
        self._closed = False
        #: Why nothing more can be taken.
        self.failure: BaseException | None = None

    def offer(self, arrival: Arrival) -> asyncio.Future[bool]:
        """Take a request; the future tells whether it was committed.

        Caller: the server's loop.  A request whose name is known joins the one before it.

        Raises
        ------
        InboxFullError
            When too much waits already.
        """
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        with self._changed:
            known = self._named.get(arrival.name) if arrival.name else None
            if known is not None and known.committed:
                waiting.set_result(True)
                return waiting
            if known is None:
                self._add(arrival)
            (known or arrival).waiting.append(waiting)
            self._changed.notify_all()
        return waiting

    def take(self, most: int, timeout: float) -> list[Arrival]:
        """Return requests in the order in which they came; whole ones, one at least."""
        with self._changed:
            if not self._fresh:
                self._changed.wait(timeout)
            taken: list[Arrival] = []
            while self._fresh and (not taken or most >= len(self._fresh[0].values)):
                arrival = self._fresh.popleft()
                most -= len(arrival.values)
                taken.append(arrival)
            self._given += taken
            return taken

    def commit(self, number: int) -> None:
        """Answer those whose last record has this number at most."""
        with self._changed:
            while self._given and self._given[0].last <= number:
                arrival = self._given.popleft()
                arrival.committed = True
                self._pending -= len(arrival.values)
                answer(arrival, committed=True)

    def close(self) -> None:
        """Answer all who still wait that their requests were not committed."""
        with self._changed:
            self._closed = True
            for arrival in (*self._given, *self._fresh):
                answer(arrival, committed=False)
            self._given.clear()
            self._fresh.clear()
            self._changed.notify_all()

    def _add(self, arrival: Arrival) -> None:
        # A single request larger than the bound passes when nothing else waits.
        full = self._pending and self._pending + len(arrival.values) > self._most
        if self._closed or full:
            raise InboxFullError
        self._number += len(arrival.values)
        arrival.last = self._number
        self._count(arrival)
        self._accept(arrival)

    def _accept(self, arrival: Arrival) -> None:
        self._fresh.append(arrival)

    def _count(self, arrival: Arrival) -> None:
        self._pending += len(arrival.values)
        if arrival.name:
            self._named[arrival.name] = arrival
            if len(self._named) > _REMEMBERED:
                self._named.popitem(last=False)


def answer(arrival: Arrival, *, committed: bool) -> None:
    """Tell all who wait for a request what came of it."""
    for future in arrival.waiting:
        loop = future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(_resolve, future, committed)
    arrival.waiting.clear()


def _resolve(future: asyncio.Future[bool], committed: bool) -> None:  # noqa: FBT001  a callback
    if not future.done():
        future.set_result(committed)
