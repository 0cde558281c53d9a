"""Membership of a consumer group: heartbeats, the list of members, the share of queues."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.errors import BrokerError, TopicNotFoundError
from headrace.protocol import groups
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.routes import MessageQueue, dumps, loads

if TYPE_CHECKING:
    from headrace.client.client import AsyncClient


_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRole:
    """A member's description of itself for the brokers."""

    group: str
    #: Tags by topic; all members must have the same.
    subscriptions: Mapping[str, str]
    client_id: str
    kind: Literal["CONSUME_ACTIVELY", "CONSUME_PASSIVELY"] = "CONSUME_ACTIVELY"
    model: Literal["CLUSTERING", "BROADCASTING"] = "CLUSTERING"
    start: str = "CONSUME_FROM_LAST_OFFSET"

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the group reads."""
        return tuple(self.subscriptions)

    def heartbeat(self) -> bytes:
        """Return the body of the member's heartbeats."""
        version = time.time_ns() // 1_000_000
        consumer = groups.ConsumerData(
            group_name=self.group,
            consume_type=self.kind,
            message_model=self.model,
            consume_from_where=self.start,
            subscription_data_set=[
                groups.SubscriptionData.of(topic, tags, version)
                for topic, tags in self.subscriptions.items()
            ],
        )
        return dumps(groups.Heartbeat(client_id=self.client_id, consumer_data_set=[consumer]))


class Membership:
    """Keeps one member of a group known to the brokers, and learns of the others from them.

    Each consumer makes its own.  Other programs that want to know of each other may use one, too:
    a broker drops a member when its connection ends, and tells the rest at once.

    Parameters
    ----------
    client
        Connection to the cluster.
    role
        What the member tells about itself.

    Examples
    --------
    >>> async def be_there(client: AsyncClient) -> None:
    ...     role = MemberRole(group="night", subscriptions={"orders": "*"}, client_id="me")
    ...     member = Membership(client, role)
    ...     await member.heartbeat()  # and again, at least every two minutes
    ...     await member.changed.wait()
    ...     await member.leave()
    """

    def __init__(self, client: AsyncClient, role: MemberRole) -> None:
        self.role = role
        #: Set when a broker says that the members have changed.
        self.changed = asyncio.Event()
        self._client = client
        self._body = role.heartbeat()
        self._retry_topic = groups.retry_topic(role.group)
        self._stop_listening = client.on_request(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._notified
        )

    async def heartbeat(self) -> None:
        """Tell all brokers that hold one of the topics that this member is alive."""
        brokers = await self._brokers()
        await asyncio.gather(*(self._beat(broker) for broker in brokers))

    async def share(self, topic: str) -> list[MessageQueue] | None:
        """Work out this member's queues of a topic; None if they are not known now."""
        try:
            queues = await self._client.queues(topic)
        except TopicNotFoundError:
            # Brokers make a group's retry topic at its first heartbeat; the route follows later.
            if topic == self._retry_topic:
                return None
            raise
        if not queues or self.role.model == "BROADCASTING":
            return queues
        members = await self._members(await self._client.broker_of(queues[0]))
        if members is None:
            return None
        return list(groups.average_rule(queues, members, self.role.client_id))

    async def leave(self) -> None:
        """Tell the brokers that this member leaves."""
        self._stop_listening()
        ext = {"clientID": self.role.client_id, "consumerGroup": self.role.group}
        for broker in await self._brokers():
            await self._client.ask_broker_once(broker, Command(RequestCode.UNREGISTER_CLIENT, ext))

    async def _brokers(self) -> list[str]:
        names: set[str] = set()
        for topic in self.role.topics:
            if topic == self._retry_topic:
                continue
            route = await self._client.route(topic)
            names.update(part.broker_name for part in route.queue_datas)
        return sorted(names)

    async def _beat(self, broker: str) -> None:
        await self._client.ask_broker(
            broker, lambda: Command(RequestCode.HEART_BEAT, {}, self._body)
        )

    async def _members(self, broker: str) -> list[str] | None:
        ext = {"consumerGroup": self.role.group}
        try:
            answer = await self._client.ask_broker(
                broker, lambda: Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
            )
        except BrokerError:
            # The broker has no member at all, not even this one: it was started anew.
            await self.heartbeat()
            return None
        return loads(answer.payload, groups.ConsumerIds).consumer_id_list

    def _notified(self, command: Command) -> Command | None:
        if command.ext.get("consumerGroup") == self.role.group:
            self.changed.set()
        return None


def new_client_id(suffix: str = "") -> str:
    """Make an id that no other member has."""
    return f"{host_name()}@{os.getpid()}#{time.time_ns()}-{next(_numbers)}{suffix}"


def host_name() -> str:
    """Return the name of this machine, with which client ids begin."""
    return socket.gethostname().replace("@", "-")
