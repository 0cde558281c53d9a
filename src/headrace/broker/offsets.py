"""Consumer offsets: how far each group has come in each queue."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import GroupNotFoundError, InvalidParameterError, RequestTimeoutError
from headrace.protocol.frames import Buffer, Command
from headrace.protocol.groups import SubscriptionGroupConfig

if TYPE_CHECKING:
    from headrace.broker.requests import Peer


# Consumer groups: how each may consume, and how often it tries.

_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
_MOST_QUEUES = 1024


class GroupTable:
    """The settings of all groups.

    Parameters
    ----------
    create
        Whether a group comes into being when it is heard of for the first time.
    saved
        Groups of an earlier run.

    Examples
    --------
    >>> groups = GroupTable(create=True)
    >>> groups.get("g").retry_max_times, groups.names()
    (16, ['g'])
    """

    def __init__(self, *, create: bool, saved: Iterable[SubscriptionGroupConfig] = ()) -> None:
        #: Whether a group comes into being when it is heard of.
        self.creates = create
        self._groups = {config.group_name: config for config in saved}
        #: Number of changes so far: the data version that tools see.
        self.version = 0

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, name: str) -> bool:
        return name in self._groups

    def names(self) -> list[str]:
        """List the groups' names, in order."""
        return sorted(self._groups)

    def configs(self) -> list[SubscriptionGroupConfig]:
        """Return all groups, for a snapshot."""
        return list(self._groups.values())

    def peek(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, None when there is none."""
        return self._groups.get(name)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group, created if that is allowed; None when there is none."""
        found = self._groups.get(name)
        if found is None and self.creates and _NAME.fullmatch(name):
            return self._put(SubscriptionGroupConfig(group_name=name))
        return found

    def get(self, name: str) -> SubscriptionGroupConfig:
        """Return a group, created if that is allowed.

        Raises
        ------
        GroupNotFoundError
            When there is none of that name.
        """
        found = self.find(name)
        if found is None:
            hint = "Create it: mqadmin updateSubGroup, or let the broker create groups by itself."
            raise GroupNotFoundError(f"subscription group not exist, {name}", hint=hint)
        return found

    def update(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Create a group or change it.

        Raises
        ------
        InvalidParameterError
            When its name or a setting cannot be.
        """
        name = config.group_name
        if not _NAME.fullmatch(name):
            hint = "Use 1 to 255 of these: letters, digits, and the signs _ - % |"
            raise InvalidParameterError(f"{name!r} cannot be the name of a group", hint=hint)
        if not 0 <= config.retry_queue_nums <= _MOST_QUEUES:
            message = f"group {name!r} cannot have {config.retry_queue_nums} retry queues"
            raise InvalidParameterError(message, hint=f"Use 0 to {_MOST_QUEUES:,}.")
        before = self._groups.get(name)
        kept = dict(before.attributes) if before else {}
        return self._put(msgspec.structs.replace(config, attributes=kept | _plain(config)))

    def _put(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        self._groups[config.group_name] = config
        self.version += 1
        return config

    def replace(self, configs: Iterable[SubscriptionGroupConfig]) -> None:
        """Take over all groups of another broker."""
        self._groups = {config.group_name: config for config in configs}
        self.version += 1

    def delete(self, name: str) -> bool:
        """Delete a group; return False when there is none of that name."""
        self.version += name in self._groups
        return self._groups.pop(name, None) is not None


def _plain(config: SubscriptionGroupConfig) -> dict[str, str]:
    """Attributes as they are kept: without the sign that says that they are added."""
    return {name.removeprefix("+"): value for name, value in config.attributes.items()}


# Requests of the broker to its clients, and their answers.

_ONEWAY = 2


@dataclass(frozen=True, slots=True)
class _ClientRequest:
    peer: int
    answer: asyncio.Future[Command]


class ClientRequests:
    """Requests of the broker to its clients that are not answered yet.

    Both sides number their requests, each for itself: an answer counts only if it comes on the
    connection that was asked.
    """

    def __init__(self) -> None:
        self._opaque = 0
        self._open: dict[int, _ClientRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def tell(self, peer: Peer, code: int, ext: Mapping[str, str], body: Buffer = b"") -> None:
        """Send a request that is not answered."""
        self._opaque += 1
        peer.send(Command(code, dict(ext), body, opaque=self._opaque, flag=_ONEWAY))

    async def ask(
        self, peer: Peer, code: int, ext: Mapping[str, str], body: Buffer, seconds: float
    ) -> Command:
        """Send a request and wait for its answer.

        Raises
        ------
        RequestTimeoutError
            When none came in time, or the client has gone.
        """
        self._opaque += 1
        number = self._opaque
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._open[number] = _ClientRequest(peer.number, answer)
        peer.send(Command(code, dict(ext), body, opaque=number))
        try:
            return await asyncio.wait_for(answer, seconds)
        except RequestTimeoutError:
            raise
        except TimeoutError:
            message = f"the client at {peer.address[0]}:{peer.address[1]} did not answer"
            raise RequestTimeoutError(f"{message} within {seconds:g} s") from None
        finally:
            del self._open[number]

    def answered(self, peer: int, command: Command) -> None:
        """Take what a client answered; what nobody asked is dropped."""
        asked = self._open.get(command.opaque)
        if asked is not None and asked.peer == peer and not asked.answer.done():
            asked.answer.set_result(command)

    def gone(self, peer: int) -> None:
        """Forget a client that is gone."""
        for asked in self._open.values():
            if asked.peer == peer and not asked.answer.done():
                message = "the client closed its connection before it answered"
                asked.answer.set_exception(RequestTimeoutError(message))


_Place = tuple[str, str, int]
_Table = dict[str, dict[str, dict[int, int]]]
#: A client that was told so often, and reads elsewhere, goes by offsets of its own.
_MOST_TOLD = 3


@dataclass(slots=True)
class _Reset:
    offset: int
    #: How often each client was told, by the number of its connection.
    told: Counter[int] = field(default_factory=Counter)


class ConsumerOffsets:
    """The offsets of all groups, and resets that members have not heard of yet.

    Examples
    --------
    >>> offsets = ConsumerOffsets()
    >>> offsets.update("g", "lines", 0, 42)
    >>> offsets.get("g", "lines", 0), offsets.get("g", "lines", 1)
    (42, None)
    """

    def __init__(self, table: Mapping[str, Mapping[str, Mapping[int, int]]] | None = None) -> None:
        self._table = _copied(table or {})
        self._pulled: dict[_Place, int] = {}
        self._pullers: set[str] = set()
        self._resets: dict[_Place, _Reset] = {}
        #: Number of changes so far: a saver compares it to know whether there is news.
        self.version = 0

    def table(self) -> dict[str, dict[str, dict[int, int]]]:
        """Return the offsets as they are now, by group, topic and queue id."""
        return _copied(self._table)

    def replace(self, table: Mapping[str, Mapping[str, Mapping[int, int]]]) -> None:
        """Replace all offsets with these."""
        self._table = _copied(table)
        self.version += 1

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the next offset that the group will read, None when it never said."""
        return self._table.get(group, {}).get(topic, {}).get(queue_id)

    def update(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note how far the group has come; ignored while a reset waits to be heard of."""
        if (group, topic, queue_id) not in self._resets:
            self._set(group, topic, queue_id, offset)

    def _set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self._table.setdefault(group, {}).setdefault(topic, {})[queue_id] = offset
        self.version += 1

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Move the group to another offset, which also becomes the goal of a pending reset."""
        if (group, topic, queue_id) in self._resets:
            self._resets[group, topic, queue_id] = _Reset(offset)
        self._set(group, topic, queue_id, offset)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Move the group, by queue id; its pulls are told so until one goes on from there."""
        for queue_id, offset in offsets.items():
            self._resets[group, topic, queue_id] = _Reset(offset)
            self._set(group, topic, queue_id, offset)

    def reset_for(
        self, group: str, topic: str, queue_id: int, *, peer: int, pulled: int
    ) -> int | None:
        """Return where a client that pulls must go on, None when it need not.

        A pull that waits may be of a client that has given up the queue since, and an answer may
        get lost: so a reset waits until a client that was told of it pulls from there.
        """
        place = group, topic, queue_id
        reset = self._resets.get(place) if self._resets else None
        if reset is None:
            return None
        has_heard = peer in reset.told and pulled == reset.offset
        if has_heard or reset.told[peer] == _MOST_TOLD:
            del self._resets[place]
            return None
        reset.told[peer] += 1
        return reset.offset

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note where the group read last, which is ahead of what it has processed."""
        self._pulled[group, topic, queue_id] = offset
        self._pullers.add(group)

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where the group read last since the broker started."""
        return self._pulled.get((group, topic, queue_id))

    @property
    def group_count(self) -> int:
        """Number of groups that have an offset or have pulled."""
        return max(len(self._table), len(self._pullers))

    def knows(self, group: str) -> bool:
        """Return whether a group has an offset or has pulled."""
        return group in self._pullers or group in self._table

    def groups(self) -> Iterator[str]:
        """Iterate over the groups that have an offset."""
        return iter(self._table)

    def topics_of(self, group: str) -> list[str]:
        """List the topics in which a group has an offset."""
        return list(self._table.get(group, {}))

    def groups_of(self, topic: str) -> list[str]:
        """List the groups that have an offset in a topic."""
        return [group for group, topics in self._table.items() if topic in topics]

    def forget_topic(self, topic: str) -> None:
        """Drop everything about a deleted topic."""
        for topics in self._table.values():
            topics.pop(topic, None)
        self._drop_volatile(lambda place: place[1] == topic)

    def forget_group(self, group: str) -> None:
        """Drop everything about a deleted group."""
        self._table.pop(group, None)
        self._pullers.discard(group)
        self._drop_volatile(lambda place: place[0] == group)

    def _drop_volatile(self, gone: Callable[[_Place], bool]) -> None:
        for place in [place for place in (*self._pulled, *self._resets) if gone(place)]:
            self._pulled.pop(place, None)
            self._resets.pop(place, None)
        self.version += 1


def _copied(table: Mapping[str, Mapping[str, Mapping[int, int]]]) -> _Table:
    return {
        group: {topic: dict(queues) for topic, queues in topics.items()}
        for group, topics in table.items()
    }
