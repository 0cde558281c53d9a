"""Planning on RocketMQ: how far each queue has come, and how much of it a batch takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.client import Client, PullConsumer
    from headrace.protocol.transactions import QueueName

__all__ = ["Ranges", "read_ranges"]

_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Ranges:
    """What queues hold, and where the next batch ends, by queue."""

    begins: dict[QueueName, int]
    ends: dict[QueueName, int]
    latest: dict[QueueName, int]


def read_ranges(
    client: Client,
    consumer: PullConsumer,
    topics: list[str],
    offsets: Mapping[QueueName, int],
    limit: int,
    wait: int,
) -> Ranges:
    """Read how far every queue has come, each for itself; wait for news at most ``wait`` ms."""
    deadline = time.monotonic() + wait / 1000
    queues = [queue for topic in topics for queue in client.queues(topic)]
    while True:
        latest = {q.name: end for q, end in consumer.end_offsets(queues).items()}
        unread = any(end > offsets.get(name, 0) for name, end in latest.items())
        if unread or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    begins = {q.name: begin for q, begin in consumer.begin_offsets(queues).items()}
    return Ranges(begins, _limited({**begins, **offsets}, latest, limit), latest)


def _limited(
    begins: Mapping[QueueName, int], latest: dict[QueueName, int], limit: int
) -> dict[QueueName, int]:
    """Cut a batch to a number of messages, in proportion to what each queue holds.

    >>> _limited({"a@b@0": 0, "a@b@1": 10}, {"a@b@0": 30, "a@b@1": 20}, 20)
    {'a@b@0': 15, 'a@b@1': 15}
    """
    waiting = {name: end - begins.get(name, 0) for name, end in latest.items()}
    total = sum(waiting.values())
    if not limit or total <= limit:
        return latest
    return {
        name: begins.get(name, 0) + max(min(1, count), count * limit // total)
        for name, count in waiting.items()
    }
