"""What all connections of a broker hold together.

No I/O: connections report, and who must wait or go is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.broker.network.limits import Limits

__all__ = ["Ledger"]

#: So many connections may wait for room for a frame; each may have sent a piece of it already.
_MOST_WAITING = 256


class Waiting(Protocol):
    """A connection as the ledger knows it."""

    @property
    def unsent(self) -> int:
        """Bytes that its client has not taken."""

    def regulate(self) -> None:
        """Look again at whether it may be read."""

    def cut_off(self, why: str) -> None:
        """End it at once."""


class Ledger:
    """Sums over all connections, and the queues that form when one is too high.

    Parameters
    ----------
    limits
        Bounds of the sums.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        #: Bytes of requests that are worked on.
        self.held = 0
        #: Bytes of frames that have not come whole, by connection.
        self._receiving: dict[Waiting, int] = {}
        self._received = 0
        #: Connections that are not read because of a sum, first come, first served.
        self.waiting: dict[Waiting, int] = {}
        #: Connections whose clients do not take their answers, the one that began first in front.
        self._clogged: dict[Waiting, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether the requests that are worked on are too many bytes."""
        return self.held > self.limits.max_held_in_all

    def receive(self, connection: Waiting, size: int) -> bool:
        """Ask for room for a frame that has begun; False: it has to wait, or to go."""
        if self._received and self._received + size > self.limits.max_receiving_in_all:
            if len(self.waiting) >= _MOST_WAITING:
                connection.cut_off("too many large frames are under way")
            else:
                self.waiting[connection] = size
            return False
        self._receiving[connection] = size
        self._received += size
        return True

    def received(self, connection: Waiting) -> None:
        """Give back the room of a frame that came whole, or never will."""
        size = self._receiving.pop(connection, 0)
        self._received -= size
        if size:
            self.wake()

    def wait(self, connection: Waiting) -> None:
        """Note a connection that waits for requests to be done."""
        self.waiting.setdefault(connection, 0)

    def wake(self) -> None:
        """Let those go on who wait, as far as there is room."""
        for connection, size in list(self.waiting.items()):
            if self.is_full:
                return
            if size:
                if self._received and self._received + size > self.limits.max_receiving_in_all:
                    return
                self._receiving[connection] = size
                self._received += size
            del self.waiting[connection]
            connection.regulate()

    def clogged(self, connection: Waiting) -> None:
        """Note a connection whose client does not take its answers, and make room if need be."""
        self._clogged[connection] = None
        if len(self._clogged) * self.limits.max_unsent > self.limits.max_unsent_in_all:
            self.relieve()

    def flowing(self, connection: Waiting) -> None:
        """Note that a client takes its answers again."""
        self._clogged.pop(connection, None)

    def relieve(self) -> None:
        """Cut off the clients that have not taken their answers for longest."""
        unsent = sum(connection.unsent for connection in self._clogged)
        for connection in list(self._clogged):
            if unsent <= self.limits.max_unsent_in_all:
                return
            unsent -= connection.unsent
            connection.cut_off("it does not take its answers, and too many bytes wait to be sent")

    def gone(self, connection: Waiting) -> None:
        """Forget a connection."""
        self.waiting.pop(connection, None)
        self._clogged.pop(connection, None)
        self.received(connection)
