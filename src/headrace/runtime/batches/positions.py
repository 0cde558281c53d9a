"""Positions: how far the batches of a sink are done, in a compaction topic of its own.

One message says it all, because a batch is done in all queues or in none.  Offsets of a consumer
group, which brokers keep queue by queue, could be torn: half of a batch would come again under the
token of the whole one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from headrace.client import Client, MessageQueue, Producer, PullConsumer
from headrace.errors import HeadraceError, OffsetExpiredError, StateError
from headrace.protocol.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.protocol.transactions import QueueName
    from headrace.topology.operators.batches import BatchSink


logger = logging.getLogger(__name__)


class SinkPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sink is."""

    #: Last batch that is done.
    batch: int
    #: Where the next one begins, by queue; queues that are left out, at their first message.
    offsets: dict[str, int] = {}


class SinkPositions:
    """Keeps the position of one sink.

    Parameters
    ----------
    client
        Connection to the cluster.
    job
        Name of the job.
    sink
        The sink.
    """

    def __init__(self, client: Client, job: str, sink: BatchSink) -> None:
        self._job = job
        self._sink = sink
        self._client = client
        self._producer = Producer(client)
        #: A group whose offsets follow, so that tools show how far behind the sink is.
        self.group = f"{job}-{sink.name}"
        self._follower = PullConsumer(client, self.group)

    def read(self) -> SinkPosition | None:
        """Return the newest position; None before the first."""
        (queue,) = self._client.queues(self._sink.done_topic)
        end = self._follower.end_offset(queue)
        if end <= self._follower.begin_offset(queue):
            return None
        message = [
            message
            for result in self._follower.blocks(queue, end - 1, end)
            for message in result.messages()
        ][-1]
        return msgspec.json.decode(message.body, type=SinkPosition)

    def write(self, position: SinkPosition) -> None:
        """Keep a position."""
        self._producer.send(
            Message(topic=self._sink.done_topic, body=msgspec.json.encode(position), keys="done")
        )
        try:
            parsed = {MessageQueue.parse(name): at for name, at in position.offsets.items()}
            self._follower.commit(parsed)
        except HeadraceError as error:
            logger.debug("the offsets of group %s stay behind: %s", self.group, error)

    def begins(
        self, position: SinkPosition, queues: list[MessageQueue], *, skip: bool
    ) -> Mapping[QueueName, int]:
        """Say where the next batch begins in each queue.

        Parameters
        ----------
        position
            Where the sink is.
        queues
            Queues of its topic.
        skip
            Go on at the first message that is left, where messages are gone.

        Raises
        ------
        OffsetExpiredError
            A queue does not hold messages that were never handed over, and ``skip`` is false.
        StateError
            The topic was made anew.
        """
        first = self._follower.begin_offsets(queues)
        last = self._follower.end_offsets(queues)
        ranges = {queue.name: (first[queue], last[queue]) for queue in queues}
        return begins_within(self._job, self._sink, position, ranges, skip=skip)


def begins_within(
    job: str,
    sink: BatchSink,
    position: SinkPosition,
    held: Mapping[QueueName, tuple[int, int]],
    *,
    skip: bool,
) -> dict[QueueName, int]:
    """Compare a position with the offsets that the broker holds, from and up to, by queue.

    Raises
    ------
    OffsetExpiredError
        A queue does not hold messages that were never handed over, and ``skip`` is false.
    StateError
        The topic was made anew.
    """
    what = f"{sink.label} '{sink.name}' of job '{job}'"
    found: dict[QueueName, int] = {}
    for queue, (first, end) in held.items():
        at = position.offsets.get(queue, 0)
        if at > end:
            raise StateError(
                f"{what} must go on at offset {at} of queue {queue}, which ends at {end}: the"
                " topic was made anew",
                hint=f"delete {sink.done_topic} too, or start the job under a new name",
            )
        if at < first and not skip:
            raise OffsetExpiredError(
                f"{what} must go on at offset {at} of queue {queue}, but the broker's first offset"
                f" is {first}: {first - at} records are gone that were never handed over",
                hint="start with on_expired_offset='earliest' to go on with what is left",
            )
        found[queue] = max(at, first)
    return found
