"""Planning on RocketMQ: how far each queue has come, and how much of it a batch takes."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from headrace.client import MessageQueue, PullStatus
from headrace.protocol.layout import record_starts
from headrace.protocol.transactions import WHOLE

if TYPE_CHECKING:
    from headrace.client import Client, PullConsumer
    from headrace.protocol.layout import Int64s
    from headrace.protocol.transactions import QueueName, Share

__all__ = ["Ranges", "SizeEstimate", "cut_to_bytes", "read_ranges"]

logger = logging.getLogger(__name__)

_POLL = 0.02
#: A stock broker gives so many messages at once, and so many bytes of them.
_SAMPLE, _SAMPLE_BYTES = 32, 256 << 10
#: Places that are looked at, of a range that is longer.
_PLACES = 4


@dataclass(frozen=True, slots=True)
class Ranges:
    """What queues hold, and where the next batch ends, by queue."""

    begins: dict[QueueName, int]
    ends: dict[QueueName, int]
    latest: dict[QueueName, int]


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """How large the messages of a range are, about: brokers of RocketMQ do not tell.

    Examples
    --------
    >>> sizes = SizeEstimate(10, np.array([100, 300]), 50.0)
    >>> sizes.total
    800.0
    >>> sizes.within(90), sizes.within(400), sizes.within(500), sizes.within(10_000)
    (1, 2, 4, 10)
    """

    #: Messages of the range.
    count: int
    #: Sizes of the first ones, as they are.
    head: Int64s
    #: Mean size of those behind, by samples.
    mean: float

    @property
    def total(self) -> float:
        """Bytes of the whole range."""
        return float(self.head.sum()) + (self.count - len(self.head)) * self.mean

    def within(self, limit: float) -> int:
        """Count the messages that have so many bytes together; one is always taken."""
        known = int(np.searchsorted(np.cumsum(self.head), limit, side="right"))
        if known < len(self.head):
            return max(1, known)
        rest = (limit - float(self.head.sum())) / self.mean if self.mean else self.count
        return max(1, min(self.count, known + int(rest)))


def read_ranges(
    client: Client,
    consumer: PullConsumer,
    topics: list[str],
    offsets: Mapping[QueueName, int],
    limit: int,
    wait: int,
    max_bytes: int = 0,
    share: Share = WHOLE,
) -> Ranges:
    """Read how far every queue has come, each for itself; wait for news at most ``wait`` ms.

    Parameters
    ----------
    limit, max_bytes
        Most messages of the batch, and about the most bytes of them; 0 is no limit.
    share
        Which queues to look at.
    """
    deadline = time.monotonic() + wait / 1000
    of_topics = [queue for topic in topics for queue in client.queues(topic)]
    queues = [queue for queue in of_topics if share.owns(queue.name)]
    while True:
        latest = {q.name: end for q, end in consumer.end_offsets(queues).items()}
        unread = any(end > offsets.get(name, 0) for name, end in latest.items())
        if unread or time.monotonic() >= deadline:
            break
        time.sleep(_POLL)
    latest = _of_masters(client, latest, offsets)
    asked = [queue for queue in queues if queue.name in latest]
    begins = {q.name: begin for q, begin in consumer.begin_offsets(asked).items()}
    starts = {**begins, **offsets}
    ends = _limited(starts, latest, limit)
    if max_bytes:
        sizes = {
            name: _estimate(consumer, name, starts[name], end)
            for name, end in ends.items()
            if end > starts[name]
        }
        ends |= {
            name: starts[name] + count for name, count in cut_to_bytes(sizes, max_bytes).items()
        }
    return Ranges(begins, ends, latest)


def _of_masters(
    client: Client, latest: dict[QueueName, int], offsets: Mapping[QueueName, int]
) -> dict[QueueName, int]:
    """Leave out queues that seem to end before what was read of them, but cannot be written to.

    A follower that stands in for its master answers for them, and may lag behind it.  A master
    that answers has recovered: what it does not show it has lost.
    """
    short = {name for name, end in latest.items() if end < offsets.get(name, 0)}
    topics = {MessageQueue.parse(name).topic for name in short}
    writable = {
        MessageQueue(topic, queue.broker_name, queue.queue_id).name
        for topic in topics
        for queue in client.route(topic, refresh=True).writable_queues(topic)
    }
    waits = short - writable
    if waits:
        logger.info("nothing is read of %s until it can be written to", ", ".join(sorted(waits)))
    return {name: end for name, end in latest.items() if name not in waits}


def cut_to_bytes(sizes: Mapping[QueueName, SizeEstimate], max_bytes: int) -> dict[QueueName, int]:
    """Give the messages to take of each queue, in proportion to what it holds.

    >>> few, many = SizeEstimate(2, np.array([10, 10]), 0.0), SizeEstimate(98, np.array([]), 10.0)
    >>> cut_to_bytes({"a@b@0": few, "a@b@1": many}, 500)
    {'a@b@0': 1, 'a@b@1': 49}
    >>> cut_to_bytes({"a@b@0": few, "a@b@1": many}, 1000)
    {'a@b@0': 2, 'a@b@1': 98}
    """
    total = sum(each.total for each in sizes.values())
    if total <= max_bytes:
        return {name: each.count for name, each in sizes.items()}
    return {name: each.within(max_bytes * each.total / total) for name, each in sizes.items()}


def _estimate(consumer: PullConsumer, name: QueueName, begin: int, end: int) -> SizeEstimate:
    count = end - begin
    head = _sizes(consumer, name, begin)
    if len(head) < min(_SAMPLE, count) and _is_cut_off(head):
        # The next one did not fit, so it is far larger than these.
        head = np.concatenate([head, _sizes(consumer, name, begin + len(head))])
    head = head[:count]
    places = range(1, _PLACES) if count > len(head) else ()
    others = [_sizes(consumer, name, begin + count * place // _PLACES) for place in places]
    means = [sizes.mean() for sizes in (head, *others) if len(sizes)]
    return SizeEstimate(count, head, float(np.mean(means)) if means else 0.0)


def _is_cut_off(head: Int64s) -> bool:
    """Tell whether a sample ended although another message like these would have fitted."""
    return len(head) > 0 and head.sum() + 2 * head.mean() < _SAMPLE_BYTES


def _sizes(consumer: PullConsumer, name: QueueName, offset: int) -> Int64s:
    """Give the sizes of some messages from an offset on."""
    queue = MessageQueue.parse(name)
    result = consumer.pull(queue, offset, max_messages=_SAMPLE, max_bytes=_SAMPLE_BYTES)
    if result.status is not PullStatus.FOUND:
        return np.zeros(0, np.int64)
    return np.diff(np.append(record_starts(result.block), len(result.block))).astype(np.int64)


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
        return dict(latest)
    return {
        name: begins.get(name, 0) + max(min(1, count), count * limit // total)
        for name, count in waiting.items()
    }
