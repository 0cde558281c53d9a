"""What one queue's reader has got and not processed yet; no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client.queues import MessageQueue
    from headrace.protocol.messages import StoredMessage

__all__ = ["ProcessQueue"]


class ProcessQueue:
    """Messages of one queue between their arrival and the end of their processing.

    They may be done in any order; ``committable`` never passes one that is not done.

    Examples
    --------
    >>> from headrace.client.queues import MessageQueue
    >>> from headrace.protocol.messages import StoredMessage
    >>> queue = ProcessQueue(MessageQueue("lines", "broker-a", 0), 7)
    >>> queue.add([StoredMessage(topic="lines", queue_offset=n) for n in (7, 8, 9)], 10)
    >>> queue.done(8)
    >>> queue.committable
    7
    >>> queue.done(7)
    >>> queue.committable
    9
    """

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        #: Messages that nobody works on yet, in order.
        self.waiting: deque[StoredMessage] = deque()
        #: Bytes of all that is not done.
        self.bytes = 0
        #: Another member has the queue now, or it was reset: what is left here counts no more.
        self.dropped = False
        #: Where reading goes on.
        self.next_offset = offset
        #: By offset, in order.
        self._unprocessed: dict[int, StoredMessage] = {}

    def __len__(self) -> int:
        return len(self._unprocessed)

    @property
    def committable(self) -> int:
        """Offset behind the last message before which all are done."""
        return next(iter(self._unprocessed), self.next_offset)

    @property
    def span(self) -> int:
        """How far the queue was read beyond ``committable``."""
        return self.next_offset - self.committable

    def add(self, messages: Sequence[StoredMessage], next_offset: int) -> None:
        """Take messages that follow those taken before; the queue goes on at ``next_offset``."""
        for message in messages:
            self._unprocessed[message.queue_offset] = message
            self.bytes += message.size
        self.waiting.extend(messages)
        self.next_offset = next_offset

    def done(self, offset: int) -> None:
        """Note that the message at an offset is processed, here or by somebody else."""
        message = self._unprocessed.pop(offset, None)
        if message is not None:
            self.bytes -= message.size

    def drop(self) -> None:
        """Let go of everything."""
        self.dropped = True
        self.waiting.clear()
        self._unprocessed.clear()
        self.bytes = 0
