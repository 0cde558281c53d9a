"""Being a member of a consumer group: heartbeats, the list of members, the share of queues."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from typing import TYPE_CHECKING

from headrace.errors import BrokerError
from headrace.protocol.allocation import average_rule
from headrace.protocol.bodies import dumps, loads
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import ConsumerData, ConsumerIds, Heartbeat, SubscriptionData

if TYPE_CHECKING:
    from headrace.client.client import AsyncClient
    from headrace.client.queues import MessageQueue

__all__ = ["Membership"]

_numbers = itertools.count(1)


class Membership:
    """What brokers know of one member of a group, and what it learns from them.

    Caller: AsyncGroupConsumer.
    """

    def __init__(self, client: AsyncClient, group: str, topics: tuple[str, ...], tags: str) -> None:
        self.client_id = _client_id()
        #: Set when a broker says that the members have changed.
        self.changed = asyncio.Event()
        self._client = client
        self._group = group
        self._topics = topics
        self._body = dumps(self._heartbeat(tags))
        self._stop_listening = client.on_request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._notified
        )

    async def heartbeat(self) -> None:
        """Tell all brokers that hold one of the topics that this member lives."""
        brokers = await self._brokers()
        await asyncio.gather(*(self._beat(broker) for broker in brokers))

    async def share(self, topic: str) -> list[MessageQueue] | None:
        """Work out this member's queues of a topic; None: the members cannot be told now."""
        queues = await self._client.queues(topic)
        if not queues:
            return []
        members = await self._members(queues[0].broker)
        if members is None:
            return None
        return list(average_rule(queues, members, self.client_id))

    async def leave(self) -> None:
        """Tell the brokers that this member goes."""
        self._stop_listening()
        ext = {"clientID": self.client_id, "consumerGroup": self._group}
        for broker in await self._brokers():
            await self._client.ask_broker_once(broker, Command(RequestCode.UNREGISTER_CLIENT, ext))

    async def _brokers(self) -> list[str]:
        names: set[str] = set()
        for topic in self._topics:
            route = await self._client.route(topic)
            names.update(part.broker_name for part in route.queue_datas)
        return sorted(names)

    async def _beat(self, broker: str) -> None:
        await self._client.ask_broker(
            broker, lambda: Command(RequestCode.HEART_BEAT, {}, self._body)
        )

    async def _members(self, broker: str) -> list[str] | None:
        ext = {"consumerGroup": self._group}
        try:
            answer = await self._client.ask_broker(
                broker, lambda: Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
            )
        except BrokerError:
            # The broker has no member at all, not even this one: it was started anew.
            await self.heartbeat()
            return None
        return loads(answer.payload, ConsumerIds).consumer_id_list

    def _heartbeat(self, tags: str) -> Heartbeat:
        version = time.time_ns() // 1_000_000
        subscriptions = [SubscriptionData.of(topic, tags, version) for topic in self._topics]
        consumer = ConsumerData(
            group_name=self._group,
            consume_type="CONSUME_ACTIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=subscriptions,
        )
        return Heartbeat(client_id=self.client_id, consumer_data_set=[consumer])

    def _notified(self, command: Command) -> Command | None:
        if command.ext.get("consumerGroup") == self._group:
            self.changed.set()
        return None


def _client_id() -> str:
    # Java's lite pull consumers end theirs alike.
    name = socket.gethostname().replace("@", "-")
    return f"{name}@{os.getpid()}#{time.time_ns()}-{next(_numbers)}@STREAM"
