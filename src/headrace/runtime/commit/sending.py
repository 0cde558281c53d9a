"""Sending at once what need not wait for the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client import MessageQueue, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client import Client
    from headrace.runtime.commit.transactions import QueueMessages

__all__ = ["sender"]


def sender(client: Client) -> Callable[[QueueMessages], int]:
    """Make a function that sends messages at once and gives their queue's next offset."""
    producer = Producer(client)

    def send(messages: QueueMessages) -> int:
        queue = MessageQueue.parse(messages.queue)
        *_, last = producer.send_columns(
            queue, messages.bodies, properties=messages.properties, born=int(messages.times[-1])
        )
        return last.offset + last.count

    return send
