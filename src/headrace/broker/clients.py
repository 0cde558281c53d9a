"""Clients: who is connected, in which groups, and who must hear when that changes.

No I/O: events go in, and what comes out are the members to notify.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.protocol.groups import ConsumerData, Heartbeat, SubscriptionData


# Queue locks: which client of a group may consume a queue in order.


@dataclass(slots=True)
class _Lock:
    client: str
    expires: float


class QueueLocks:
    """Locks of queues by consumer groups, each ending unless its client renews it.

    Parameters
    ----------
    expiry
        Seconds for which a lock holds.
    most
        Most locks in all.

    Examples
    --------
    >>> locks = QueueLocks(60)
    >>> locks.acquire("g", "a", [("lines", 0)], now=0)
    [('lines', 0)]
    >>> locks.acquire("g", "b", [("lines", 0)], now=59)
    []
    >>> locks.acquire("g", "b", [("lines", 0)], now=60)
    [('lines', 0)]
    """

    def __init__(self, expiry: float, most: int = 1_000_000) -> None:
        self._expiry = expiry
        self._most = most
        self._locks: dict[tuple[str, tuple[str, int]], _Lock] = {}
        self._swept = float("-inf")

    def acquire(
        self, group: str, client: str, queues: Iterable[tuple[str, int]], *, now: float
    ) -> list[tuple[str, int]]:
        """Take or renew locks; return the queues that the client now holds."""
        granted = []
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is None and not self._has_room(now):
                break
            if lock is None or lock.client == client or lock.expires <= now:
                self._locks[group, queue] = _Lock(client, now + self._expiry)
                granted.append(queue)
        return granted

    def _has_room(self, now: float) -> bool:
        if len(self._locks) >= self._most and now >= self._swept + 1:
            self._swept = now
            self._locks = {key: lock for key, lock in self._locks.items() if lock.expires > now}
        return len(self._locks) < self._most

    def release(self, group: str, client: str, queues: Iterable[tuple[str, int]]) -> None:
        """Release locks; those of other clients stay."""
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client == client:
                del self._locks[group, queue]

    def holder(self, group: str, queue: tuple[str, int], *, now: float) -> str:
        """Return the client of a group that holds a queue, or an empty string if none does."""
        lock = self._locks.get((group, queue))
        return "" if lock is None or lock.expires <= now else lock.client

    def holds_any(self, group: str, *, now: float) -> bool:
        """Return whether any client of a group holds a lock: then the group consumes in order."""
        return any(name == group and lock.expires > now for (name, _), lock in self._locks.items())


@dataclass(slots=True)
class Member:
    """One client in one group, on one connection."""

    client_id: str
    #: Number of the connection.
    peer: int
    address: str
    language: str
    version: int
    #: When it was last heard of, seconds.
    seen: float = 0.0


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group with at least one member, or that had one."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    #: By topic; one for the whole group, so its members must subscribe alike.
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    #: By connection.
    members: dict[int, Member] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        """List the members' ids, each once."""
        return sorted({member.client_id for member in self.members.values()})


@dataclass(frozen=True, slots=True)
class Notify:
    """An instruction: tell a connection that its group changed."""

    peer: int
    group: str


@dataclass(slots=True)
class _Joined:
    """The groups of one connection, by name."""

    consumers: set[str] = field(default_factory=set)
    producers: set[str] = field(default_factory=set)


class ClientRegistry:
    """All clients that are connected, as members of groups.

    Parameters
    ----------
    expiry
        Seconds of silence after which a member is gone.

    Examples
    --------
    >>> from headrace.protocol.groups import ConsumerData, Heartbeat
    >>> clients = ClientRegistry(120)
    >>> beat = Heartbeat(client_id="a", consumer_data_set=[ConsumerData(group_name="g")])
    >>> clients.heartbeat(beat, Member("a", 1, "127.0.0.1:1", "JAVA", 479), now=0)
    [Notify(peer=1, group='g')]
    >>> clients.group("g").client_ids()
    ['a']
    """

    def __init__(self, expiry: float) -> None:
        self._expiry = expiry
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[int, Member]] = {}
        #: What each connection takes part in.
        self._joined: dict[int, _Joined] = {}
        #: Subscriptions of all groups together.
        self.subscription_count = 0

    def group(self, name: str) -> ConsumerGroup | None:
        """Return a consumer group, None when nobody was ever in it."""
        return self._consumers.get(name)

    def groups(self) -> Iterator[ConsumerGroup]:
        """Iterate over the consumer groups."""
        return iter(list(self._consumers.values()))

    @property
    def group_count(self) -> int:
        """Number of consumer groups."""
        return len(self._consumers)

    @property
    def producer_group_count(self) -> int:
        """Number of producer groups."""
        return len(self._producers)

    def forget(self, name: str) -> None:
        """Drop what is known of a group without members."""
        found = self._consumers.get(name)
        if found is not None and not found.members:
            del self._consumers[name]

    def producers(self, group: str) -> list[Member]:
        """List the members of a producer group."""
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[Member]]:
        """List all producer groups with their members."""
        return {group: list(members.values()) for group, members in self._producers.items()}

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return what a group said about a topic in its heartbeats."""
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def would_join(self, beat: Heartbeat, peer: int) -> int:
        """Return in how many groups a client would be, with those that a heartbeat names."""
        joined = self._of(peer)
        consuming = {each.group_name for each in beat.consumer_data_set}
        producing = {each.group_name for each in beat.producer_data_set}
        return len(joined.consumers | consuming) + len(joined.producers | producing)

    def heartbeat(self, beat: Heartbeat, member: Member, *, now: float) -> list[Notify]:
        """Take a sign of life: it names all groups of the client."""
        member.client_id = beat.client_id
        member.seen = now
        for producer in beat.producer_data_set:
            self._producers.setdefault(producer.group_name, {})[member.peer] = member
            self._of(member.peer).producers.add(producer.group_name)
        notices: list[Notify] = []
        for consumer in beat.consumer_data_set:
            if self._join(consumer, member, keep=beat.without_sub):
                notices += self._notices(consumer.group_name)
        return notices

    def _join(self, consumer: ConsumerData, member: Member, *, keep: bool) -> bool:
        """Put a member into a group, and return whether that changed who reads what."""
        name = consumer.group_name
        group = self._consumers.setdefault(name, ConsumerGroup(name))
        joined = member.peer not in group.members
        self._of(member.peer).consumers.add(name)
        group.members[member.peer] = member
        group.consume_type = consumer.consume_type
        group.message_model = consumer.message_model
        group.consume_from_where = consumer.consume_from_where
        if keep:
            return joined
        topics = set(group.subscriptions)
        group.subscriptions = _merged(group.subscriptions, consumer.subscription_data_set)
        self.subscription_count += len(group.subscriptions) - len(topics)
        return joined or topics != set(group.subscriptions)

    def unregister(
        self, peer: int, *, producer_group: str | None, consumer_group: str | None
    ) -> list[Notify]:
        """Remove a client from groups."""
        if producer_group:
            self._leave_producers(producer_group, peer)
        return self._leave_consumers(consumer_group, peer) if consumer_group else []

    def disconnect(self, peer: int) -> list[Notify]:
        """Remove the client of a closed connection from all its groups."""
        joined = self._of(peer)
        for name in list(joined.producers):
            self._leave_producers(name, peer)
        notices: list[Notify] = []
        for name in sorted(joined.consumers):
            notices += self._leave_consumers(name, peer)
        del self._joined[peer]
        return notices

    def expire(self, *, now: float) -> list[Notify]:
        """Remove clients that have been silent for too long."""
        silent = {
            member.peer
            for members in [*self._producers.values(), *(g.members for g in self.groups())]
            for member in members.values()
            if now - member.seen > self._expiry
        }
        notices: list[Notify] = []
        for peer in sorted(silent):
            notices += self.disconnect(peer)
        return notices

    def _of(self, peer: int) -> _Joined:
        return self._joined.setdefault(peer, _Joined())

    def _leave_producers(self, group: str, peer: int) -> None:
        self._of(peer).producers.discard(group)
        members = self._producers.get(group, {})
        members.pop(peer, None)
        if not members:
            self._producers.pop(group, None)

    def _leave_consumers(self, name: str, peer: int) -> list[Notify]:
        self._of(peer).consumers.discard(name)
        group = self._consumers.get(name)
        if group is None or group.members.pop(peer, None) is None:
            return []
        return self._notices(name)

    def _notices(self, name: str) -> list[Notify]:
        return [Notify(peer, name) for peer in self._consumers[name].members]


def _merged(
    known: dict[str, SubscriptionData], told: list[SubscriptionData]
) -> dict[str, SubscriptionData]:
    """Take over what a heartbeat says; of one topic the newer version counts."""
    merged: dict[str, SubscriptionData] = {}
    for subscription in told:
        old = known.get(subscription.topic)
        newer = old is None or subscription.sub_version > old.sub_version
        merged[subscription.topic] = subscription if newer or old is None else old
    return merged
