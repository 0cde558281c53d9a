"""The part of the administration that is about groups."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

from headrace.client.lag import GroupLag, connections_of_group, group_lag
from headrace.client.pulling import AsyncPullConsumer
from headrace.client.queues import MessageQueue
from headrace.client.standings import QueueProgress
from headrace.errors import NotFoundError
from headrace.protocol.bodies import QueueRef, dumps, loads
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from headrace.protocol.stats import ConsumeStats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from headrace.client.client import AsyncClient

__all__ = ["GroupAdministration", "queue_of_key"]


class GroupAdministration:
    """Look after consumer groups.

    Caller: AsyncAdmin, which is one.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def group_progress(
        self, group: str, topic: str | None = None
    ) -> dict[MessageQueue, QueueProgress]:
        """How far a group has come in the queues of its topics, or of one topic.

        Raises
        ------
        NotFoundError
            If no broker knows an offset of the group.
        """
        ext = {"consumerGroup": group} | ({"topic": topic} if topic is not None else {})
        found: dict[MessageQueue, QueueProgress] = {}
        for broker in await self.client.brokers():
            answer = await self.client.ask_broker(
                broker, lambda: Command(RequestCode.GET_CONSUME_STATS, ext)
            )
            for ref, part in loads(answer.payload, ConsumeStats).offset_table.items():
                found[queue_of_key(ref)] = QueueProgress(part.consumer_offset, part.broker_offset)
        if not found:
            raise NotFoundError(
                f"group {group!r} has no offsets" + (f" in topic {topic!r}" if topic else ""),
                hint="a group appears with its first commit",
            )
        return dict(sorted(found.items()))

    async def group_members(self, group: str) -> list[str]:
        """List the client ids of a group's members; none if it has no member now."""
        found = await connections_of_group(self.client, group)
        return sorted({member.client_id for each in found for member in each.connection_set})

    async def set_group_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set the next offset that a group reads from queues; it should have no member now."""
        await AsyncPullConsumer(self.client, group).commit(offsets)

    async def groups(self) -> list[str]:
        """List the names of all consumer groups."""
        return sorted({name async for table in self._group_tables() for name in table})

    async def group_config(self, group: str) -> SubscriptionGroupConfig:
        """Settings of a group, as its first broker has them.

        Raises
        ------
        NotFoundError
            If no broker knows the group.
        """
        async for table in self._group_tables():
            if group in table:
                return table[group]
        raise NotFoundError(
            f"there is no group {group!r}", hint="a group appears with its first member or commit"
        )

    async def _group_tables(self) -> AsyncIterator[dict[str, SubscriptionGroupConfig]]:
        """Give the groups that each broker knows, by name."""
        for broker in await self.client.brokers():
            answer = await self.client.ask_broker(
                broker, lambda: Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            )
            yield loads(answer.payload, SubscriptionGroupTable).subscription_group_table

    async def set_group_config(self, config: SubscriptionGroupConfig) -> None:
        """Make a group, or change its settings, on all brokers.

        For example ``retry_max_times``, or ``consume_enable`` to stop its members.
        """
        make = partial(Command, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps(config))
        for broker in await self.client.brokers():
            await self.client.ask_broker(broker, make)

    async def lag(self, group: str, topic: str | None = None) -> GroupLag:
        """How far a group is behind, by queue and in all; it need not ever have connected.

        Parameters
        ----------
        topic
            Only this topic; all that the group has offsets in or reads, if not given.

        Raises
        ------
        NotFoundError
            If no topic is given and nothing tells what the group reads.
        """
        return await group_lag(self.client, group, () if topic is None else (topic,))

    async def reset_group(
        self, group: str, topic: str, to: datetime | Literal["first", "last"]
    ) -> dict[MessageQueue, int]:
        """Set a group back or ahead in a topic, and tell where it goes on.

        Members that run hear of it with their next pull.

        Parameters
        ----------
        to
            A time (what was stored then or later is read), or an end of the topic.
        """
        queues = await self.client.queues(topic)
        consumer = AsyncPullConsumer(self.client, group)
        if to == "first":
            offsets = await consumer.begin_offsets(queues)
        elif to == "last":
            offsets = await consumer.end_offsets(queues)
        else:
            offsets = await consumer.offsets_for_time(queues, to)
        if await self.group_members(group):
            # Members would commit over what is committed here: the broker tells them.
            await self._reset_members(group, offsets)
        else:
            await consumer.commit(offsets)
        return offsets

    async def _reset_members(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            ext = {
                "topic": queue.topic,
                "group": group,
                "queueId": str(queue.queue_id),
                "offset": str(offset),
                "timestamp": "-1",
                "isForce": "true",
            }
            await self.client.ask_queue(
                queue, partial(Command, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
            )

    async def delete_group(self, group: str) -> None:
        """Delete a group and its offsets."""
        ext = {"groupName": group, "cleanOffset": "true"}
        for broker in await self.client.brokers():
            await self.client.ask_broker(
                broker, lambda: Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
            )


def queue_of_key(key: str) -> MessageQueue:
    """Read a queue from the key of a table in a JSON body."""
    ref = QueueRef.of_key(key)
    return MessageQueue(ref.topic, ref.broker_name, ref.queue_id)
