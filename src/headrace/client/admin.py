"""Looking after a cluster: topics, groups, offsets, brokers and single messages."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from headrace import errors
from headrace.client.client import AsyncClient, Openable
from headrace.client.lag import (
    GroupLag,
    JobStanding,
    QueueProgress,
    QueueRange,
    connections_of_group,
    group_lag,
)
from headrace.client.pulling import AsyncPullConsumer, topic_fields, whole_milliseconds
from headrace.durations import format_duration
from headrace.protocol.codes import Perm, RequestCode, ResponseCode
from headrace.protocol.frames import Command
from headrace.protocol.groups import (
    ConsumeStats,
    GroupList,
    RuntimeInfo,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicStats,
)
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.properties import decode_offset_id
from headrace.protocol.routes import ClusterInfo, MessageQueue, TopicConfig, TopicList, dumps, loads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping


# The part of the administration that is about groups.


class GroupAdministration(Openable):
    """Looks after consumer groups.

    Caller: AsyncAdmin, its subclass.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def group_progress(
        self, group: str, topic: str | None = None
    ) -> dict[MessageQueue, QueueProgress]:
        """Return how far a group has come in the queues of its topics, or of one topic.

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
                found[MessageQueue.of_key(ref)] = QueueProgress(
                    part.consumer_offset, part.broker_offset
                )
        if not found:
            raise errors.NotFoundError(
                f"group {group!r} has no offsets" + (f" in topic {topic!r}" if topic else ""),
                hint="a group appears with its first commit",
            )
        return dict(sorted(found.items()))

    async def group_members(self, group: str) -> list[str]:
        """List the client ids of a group's members; none if it has no member now."""
        found = await connections_of_group(self.client, group)
        return sorted({member.client_id for each in found for member in each.connection_set})

    async def set_group_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set the next offset that a group reads from queues; it should have no members."""
        await AsyncPullConsumer(self.client, group).commit(offsets)

    async def groups(self) -> list[str]:
        """List the names of all consumer groups."""
        return sorted({name async for table in self._group_tables() for name in table})

    async def group_config(self, group: str) -> SubscriptionGroupConfig:
        """Return the settings of a group, as its first broker has them.

        Raises
        ------
        NotFoundError
            If no broker knows the group.
        """
        async for table in self._group_tables():
            if group in table:
                return table[group]
        raise errors.NotFoundError(
            f"there is no group {group!r}", hint="a group appears with its first member or commit"
        )

    async def _group_tables(self) -> AsyncIterator[dict[str, SubscriptionGroupConfig]]:
        """Yield the groups that each broker knows, by name."""
        for broker in await self.client.brokers():
            answer = await self.client.ask_broker(
                broker, lambda: Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            )
            yield loads(answer.payload, SubscriptionGroupTable).subscription_group_table

    async def set_group_config(self, config: SubscriptionGroupConfig) -> None:
        """Make a group, or change its settings, on all brokers.

        Examples are ``retry_max_times``, and ``consume_enable``, which stops its members.
        """
        make = partial(Command, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, dumps(config))
        for broker in await self.client.brokers():
            await self.client.ask_broker(broker, make)

    async def lag(self, group: str, topic: str | None = None) -> GroupLag:
        """Return how far a group is behind, by queue and in all; it may never have connected.

        Parameters
        ----------
        topic
            The only topic to look at; by default all that the group has offsets in or reads.

        Raises
        ------
        NotFoundError
            If no topic is given and nothing tells what the group reads.
        """
        return await group_lag(self.client, group, () if topic is None else (topic,))

    async def reset_group(
        self, group: str, topic: str, to: datetime | Literal["first", "last"]
    ) -> dict[MessageQueue, int]:
        """Set a group back or ahead in a topic, and return where it goes on.

        Running members hear of it with their next pull.

        Parameters
        ----------
        to
            A time (messages stored then or later are read), or an end of the topic.
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


#: How long a new topic may take until its route names all its brokers: a broker tells name servers
#: at once; if that is lost, it does so again within 30 s, or when it is asked once more.
_ROUTE_TIMEOUT = timedelta(seconds=40)
_ROUTE_AGAIN = timedelta(seconds=8)
_ROUTE_PAUSE = 0.05


class AsyncAdmin(GroupAdministration):
    """Looks after a cluster.

    Parameters
    ----------
    client
        The connection to the cluster.
    """

    # Topics

    async def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        attributes: Mapping[str, str] | None = None,
        brokers: list[str] | None = None,
        perm: Perm = Perm.READ | Perm.WRITE,
    ) -> None:
        """Create a topic, or change the number of its queues, and wait until its route shows.

        Parameters
        ----------
        queues
            Number of queues on each broker.
        attributes
            For example ``{"cleanup.policy": "COMPACTION"}``; only a new topic takes them.
        brokers
            Names of the brokers that hold it; by default all brokers.
        perm
            What the topic allows on them; ``Perm(0)`` only reserves its name there.

        Raises
        ------
        ConfigurationError
            If the number of queues is not positive, or there is no broker.
        """
        if queues < 1:
            raise errors.ConfigurationError(f"topic {name!r} cannot have {queues} queues")
        chosen = brokers if brokers is not None else list(await self.client.brokers())
        if not chosen:
            raise errors.ConfigurationError(
                f"no broker is registered at {self.client.name_servers[0]}",
                hint="start one, and look at its log if it runs",
            )

        async def create(attributes: Mapping[str, str]) -> None:
            ext = topic_fields(name, queues, attributes, perm)
            make = partial(Command, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
            await asyncio.gather(*(self.client.ask_broker(broker, make) for broker in chosen))

        await create(attributes or {})
        # Brokers refuse attributes for a topic that exists.
        await self._await_route(name, queues, set(chosen), again=lambda: create({}))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its messages; a missing topic is no error."""
        ext = {"topic": name}
        for broker in await self.client.brokers():
            await self.client.ask_broker(
                broker,
                lambda: Command(RequestCode.DELETE_TOPIC_IN_BROKER, ext),
                expect=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST),
            )
        await self.client.ask_name_server(lambda: Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext))
        self.client.forget_route(name)

    async def topics(self) -> list[str]:
        """List the names of all topics, system topics included."""
        answer = await self.client.ask_name_server(
            lambda: Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        )
        return sorted(loads(answer.payload, TopicList).topic_list)

    async def topic_exists(self, name: str) -> bool:
        """Return whether a topic exists now."""
        try:
            await self.client.route(name, refresh=True)
        except errors.TopicNotFoundError:
            return False
        return True

    async def topic_config(self, name: str, broker: str | None = None) -> dict[str, TopicConfig]:
        """Return the settings of a topic on each broker that holds it, or on one of them.

        Raises
        ------
        TopicNotFoundError
            If there is no such topic.
        """
        ext = {"topic": name, "lo": "true"}
        configs: dict[str, TopicConfig] = {}
        for holder in await self._brokers_of(name) if broker is None else (broker,):
            answer = await self.client.ask_broker(
                holder, lambda: Command(RequestCode.GET_TOPIC_CONFIG, ext)
            )
            configs[holder] = loads(answer.payload, TopicConfig)
        return configs

    async def topic_stats(self, name: str) -> dict[MessageQueue, QueueRange]:
        """Return what each queue of a topic holds."""
        ext = {"topic": name}
        found: dict[MessageQueue, QueueRange] = {}
        for broker in await self._brokers_of(name):
            answer = await self.client.ask_broker(
                broker, lambda: Command(RequestCode.GET_TOPIC_STATS_INFO, ext)
            )
            for ref, range_ in loads(answer.payload, TopicStats).offset_table.items():
                found[MessageQueue.of_key(ref)] = QueueRange(
                    range_.min_offset, range_.max_offset, _time(range_.last_update_timestamp)
                )
        return dict(sorted(found.items()))

    async def topic_groups(self, name: str) -> list[str]:
        """List the groups that read a topic or have an offset in it."""
        found: set[str] = set()
        for broker in await self._brokers_of(name):
            answer = await self.client.ask_broker(
                broker, lambda: Command(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": name})
            )
            found.update(loads(answer.payload, GroupList).group_list)
        return sorted(found)

    # Brokers

    async def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters."""
        return await self.client.cluster_info()

    async def broker_status(self, broker: str) -> dict[str, str]:
        """Return what a broker reports of itself, by name."""
        answer = await self.client.ask_broker(
            broker, lambda: Command(RequestCode.GET_BROKER_RUNTIME_INFO)
        )
        return dict(sorted(loads(answer.payload, RuntimeInfo).table.items()))

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return the settings of a broker, by RocketMQ's names for them."""
        answer = await self.client.ask_broker(
            broker, lambda: Command(RequestCode.GET_BROKER_CONFIG)
        )
        lines = bytes(answer.payload).decode().splitlines()
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): value.strip() for name, _, value in pairs if value}

    # Messages

    async def message(self, queue: MessageQueue, offset: int) -> StoredMessage:
        """Read one message of a queue.

        Raises
        ------
        NotFoundError
            If the queue does not hold this offset.
        """
        result = await AsyncPullConsumer(self.client).pull(queue, offset, max_messages=1)
        for message in result.messages():
            if message.queue_offset == offset:
                return message
        raise errors.NotFoundError(
            f"queue {queue} holds no message at {offset}, "
            f"but {result.min_offset} up to {result.max_offset}"
        )

    async def message_by_id(self, topic: str, offset_id: str) -> StoredMessage:
        """Read the message that an offset id names, as sends return it.

        Raises
        ------
        NotFoundError
            If the id names a broker that is not in this cluster.
        BrokerError
            If that broker holds no message there.
        """
        (host, port), position = decode_offset_id(offset_id)
        address = f"{host}:{port}"
        broker = next((n for n, a in (await self.client.brokers()).items() if a == address), None)
        if broker is None:
            raise errors.NotFoundError(f"no broker at {address}, which the id {offset_id} names")
        ext = {"topic": topic, "offset": str(position)}
        answer = await self.client.ask_broker(
            broker, lambda: Command(RequestCode.VIEW_MESSAGE_BY_ID, ext)
        )
        return decode_messages(answer.payload)[0]

    async def messages_by_key(
        self, topic: str, key: str, *, limit: int = 32, since: datetime | None = None
    ) -> list[StoredMessage]:
        """Return the messages of a topic that have a key, the newest first."""
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(limit),
            "beginTimestamp": str(0 if since is None else whole_milliseconds(since)),
            "endTimestamp": str(2**63 - 1),
        }
        found: list[StoredMessage] = []
        for broker in await self._brokers_of(topic):
            answer = await self.client.ask_broker(
                broker,
                lambda: Command(RequestCode.QUERY_MESSAGE, ext),
                expect=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
            )
            found += decode_messages(answer.payload)
        # The index of a stock broker compares hashes of keys.
        found = [message for message in found if key in (message.keys or "").split()]
        return sorted(found, key=lambda message: -message.stored)[:limit]

    # Jobs

    async def jobs(self) -> list[JobStanding]:
        """List the jobs whose commits embedded brokers keep, with where they stand."""
        found: list[JobStanding] = []
        for broker in await self.client.brokers():
            if await self.client.is_headrace(broker):
                answer = await self.client.ask_broker(
                    broker, lambda: Command(RequestCode.LIST_JOBS)
                )
                found += msgspec.json.decode(answer.payload, type=list[JobStanding])
        return sorted(found, key=lambda job: job.commit_topic)

    # Inside

    async def _brokers_of(self, topic: str) -> list[str]:
        route = await self.client.route(topic, refresh=True)
        return sorted(part.broker_name for part in route.queue_datas)

    async def _await_route(
        self,
        topic: str,
        queues: int,
        brokers: set[str],
        *,
        again: Callable[[], Awaitable[None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _ROUTE_TIMEOUT.total_seconds()
        due = loop.time() + _ROUTE_AGAIN.total_seconds()
        while not await self._is_routed(topic, queues, brokers):
            if loop.time() > due:
                await again()
                due = loop.time() + _ROUTE_AGAIN.total_seconds()
            if loop.time() > deadline:
                raise errors.RequestTimeoutError(
                    f"topic {topic!r} was created on {', '.join(sorted(brokers))}, but after "
                    f"{format_duration(_ROUTE_TIMEOUT)} the name server does not show it",
                    hint="look whether the brokers are registered: `mqadmin clusterList`",
                )
            await asyncio.sleep(_ROUTE_PAUSE)

    async def _is_routed(self, topic: str, queues: int, brokers: set[str]) -> bool:
        try:
            route = await self.client.route(topic, refresh=True)
        except errors.TopicNotFoundError:
            return False
        ready = {
            part.broker_name
            for part in route.queue_datas
            if part.read_queue_nums == queues == part.write_queue_nums
        }
        return brokers <= ready


def _time(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds > 0 else None
