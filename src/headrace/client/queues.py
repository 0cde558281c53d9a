"""The name of one queue of a topic."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import SettingsError

__all__ = ["MessageQueue"]


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker.

    Queues sort by topic, broker and number, as every member of a group must sort them.

    Examples
    --------
    >>> queue = MessageQueue("lines", "broker-a", 3)
    >>> queue.name
    'lines@broker-a@3'
    >>> MessageQueue.parse(queue.name) == queue
    True
    """

    topic: str
    #: Name of the broker that holds the queue, not its address.
    broker: str
    queue_id: int

    @property
    def name(self) -> str:
        """The queue in one word, ``topic@broker@queue-id``."""
        return f"{self.topic}@{self.broker}@{self.queue_id}"

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, name: str) -> MessageQueue:
        """Read back a ``name``.

        Raises
        ------
        SettingsError
            If it is not of the form ``topic@broker@queue-id``.
        """
        topic, _, rest = name.partition("@")
        broker, _, queue_id = rest.rpartition("@")
        if not topic or not broker or not queue_id.isdecimal():
            raise SettingsError(
                f"{name!r} is not the name of a queue", hint="write topic@broker@queue-id"
            )
        return cls(topic, broker, int(queue_id))
