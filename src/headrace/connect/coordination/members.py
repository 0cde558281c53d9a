"""Which workers of a cluster are alive: members of a consumer group that give signs of life."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, NoPermissionError, WorkerIdTakenError
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Membership, MessageQueue


# Which members of a cluster give signs of life, judged by one that gives them, too.

#: Between two signs of its own that come back, a worker counts at most this part of the time-out:
#: what was on the way while it stood still, or nobody could write, is not the others' silence.
_SHARE = 1 / 3


class SignsOfLife:
    """Detector of silent members, by the signs of life of all, in the order of their queue.

    Only a sign of its own that has come back proves that the others could have been heard.  Time
    therefore passes here from one of those to the next, and not while this worker stands still or
    a broker is away.

    Parameters
    ----------
    own
        Id of the member that listens.
    timeout
        Seconds of silence after which a member counts as gone.
    clock
        Returns the time in seconds.

    Examples
    --------
    >>> now = 0.0
    >>> signs = SignsOfLife("me", timeout=6.0, clock=lambda: now)
    >>> signs.gone({"me", "other"})
    set()
    >>> for now in (2.0, 4.0, 6.0, 8.0):
    ...     signs.hear("me")
    >>> signs.gone({"me", "other"})
    {'other'}
    >>> signs.hear("other")
    >>> signs.gone({"me", "other"})
    set()
    """

    def __init__(
        self, own: str, *, timeout: float, clock: Callable[[], float] | None = None
    ) -> None:
        self.own = own
        self._timeout, self._clock = timeout, clock or time.monotonic
        #: Seconds for which the others could have been heard.
        self._watched = 0.0
        self._own_heard = self._clock()
        #: Of each member, what had been watched when it was known to be alive last, and the time.
        self._alive: dict[str, tuple[float, float]] = {}
        self._listed = False

    def hear(self, member: str) -> None:
        """Note a sign of life."""
        now = self._clock()
        if member == self.own:
            self._watched += min(now - self._own_heard, self._timeout * _SHARE)
            self._own_heard = now
        self._alive[member] = self._watched, now

    def gone(self, members: Collection[str], lost: Mapping[str, float] | None = None) -> set[str]:
        """Return the members that have given no sign for too long, and forget those who have left.

        Parameters
        ----------
        members
            Those that brokers know; one that is new among them counts as heard of now.
        lost
            Those that all count as lost, and since when: they have to be heard of after that.
        """
        # It does not know for how long those have been silent that were there before it.
        known = self._clock() if self._listed else -math.inf
        self._listed = True
        self._alive = {one: self._alive.get(one, (self._watched, known)) for one in members}
        return {one for one in members if one != self.own and self._is_gone(one, lost or {})}

    def _is_gone(self, member: str, lost: Mapping[str, float]) -> bool:
        watched, heard = self._alive[member]
        return self._watched - watched >= self._timeout or heard < lost.get(member, -math.inf)


logger = logging.getLogger(__name__)

#: Stands between a worker's name and the word for this life of it.
_MARK = "%"
#: Begins the word for a life that gives signs, which an older release does not.
_SIGNS = "~"


class Members:
    """The membership of one worker, and the names of all.

    A broker drops a member when its connection ends, and tells the others at once.  It keeps one
    that is cut off for two minutes, which no setting of a client changes: so members send signs of
    life to a topic as well, ``<group>-heartbeats``, and one whose signs stop is gone for those that
    read them.  Where a worker may not make or write that topic, the word of the brokers counts.

    Parameters
    ----------
    client
        Connection to the cluster.
    group
        Name of the cluster of workers.
    topic
        Topic of its log, beside which the signs lie.
    worker
        Name of this worker.
    interval
        Time between two signs of life.
    timeout
        Time without a sign after which a worker is lost.
    """

    def __init__(
        self,
        client: AsyncClient,
        group: str,
        topic: str,
        worker: str,
        *,
        interval: timedelta,
        timeout: timedelta,
    ) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._signs_topic = f"{group}-heartbeats"
        self._worker = worker
        self._interval, self._timeout = interval, timeout
        #: Ids that this worker has been a member by: brokers may list an old one for two minutes.
        self._own_ids: set[str] = set()
        self.client_id = self._new_id()
        self._signs = SignsOfLife(self.client_id, timeout=timeout.total_seconds())
        self._membership: Membership | None = None
        self._joined = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: Told of the error that has ended the heartbeats.
        self.on_failure: OnFailure = lambda _error: None

    async def join(self) -> None:
        """Become a member, until `leave`.

        Raises
        ------
        WorkerIdTakenError
            A worker of this name is a member.
        """
        from headrace.client import MemberRole, Membership

        if any(self._is_rival(one) for one in await self._ids()):
            raise self._taken()
        queue = await self._first_sign()
        topics = {self._topic: "*"}
        role = MemberRole(group=self._group, subscriptions=topics, client_id=self.client_id)
        self._membership = Membership(self._client, role)
        self._own_ids.add(self.client_id)
        await self._membership.heartbeat()
        rivals = [one for one in await self._ids() if self._is_rival(one)]
        if min(rivals, default=self.client_id) < self.client_id:  # two began at once
            await self.leave()
            raise self._taken()
        self._joined.set()
        self._start("heartbeat", self._beat())
        if queue is not None:
            self._start("signs", self._give_signs(queue))
            self._start("listener", self._hear_signs(queue))

    async def workers(self, lost_since: Mapping[str, float] | None = None) -> set[str]:
        """Return the names of all workers that are alive.

        Parameters
        ----------
        lost_since
            Workers that the log counts as lost, and the time at which that was read: of them,
            those are alive that have given a sign since, or have joined anew.
        """
        ids = await self._ids()
        giving = {one for one in ids if _gives_signs(one)}
        since = lost_since or {}
        lost = {one: since[_name_in(one)] for one in giving if _name_in(one) in since}
        gone = self._signs.gone(giving, lost)
        return {_name_in(one) for one in ids if one not in gone}

    async def join_again(self) -> None:
        """Leave, and become a member anew by another id.

        Raises
        ------
        WorkerIdTakenError
            A worker of this name has become a member meanwhile.
        """
        await self.leave()
        self.client_id = self._new_id()
        await self.join()

    async def changed(self) -> None:
        """Wait until a broker says that the members have changed."""
        await self._joined.wait()
        assert self._membership is not None
        changed = self._membership.changed
        await changed.wait()
        changed.clear()

    async def leave(self) -> None:
        """Leave the cluster."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._membership is not None:
            with suppress(HeadraceError):  # the broker drops this member by itself
                await self._membership.leave()
            # Whoever waits for changes of this membership waits for those of the next one.
            self._joined.clear()
            self._membership.changed.set()
            self._membership = None

    async def _ids(self) -> list[str]:
        from headrace.client import AsyncAdmin

        return await AsyncAdmin(self._client).group_members(self._group)

    def _new_id(self, signs: str = _SIGNS) -> str:
        return f"{self._worker}{_MARK}{signs}{uuid.uuid4().hex[:12]}"

    def _is_rival(self, client_id: str) -> bool:
        return _name_in(client_id) == self._worker and client_id not in self._own_ids

    def _taken(self) -> WorkerIdTakenError:
        return WorkerIdTakenError(
            f"a worker '{self._worker}' of the group '{self._group}' is alive",
            hint="give this one another worker_id; if that one was killed without a word, brokers"
            " need up to two minutes to notice",
        )

    def _start(self, name: str, work: Coroutine[None, None, None]) -> None:
        task = watched_task(work, name=f"connect-{name}", on_failure=self._fail)
        self._tasks.append(task)

    def _fail(self, error: BaseException) -> None:
        self.on_failure(error)

    async def _beat(self) -> None:
        assert self._membership is not None
        while True:
            await asyncio.sleep(self._interval.total_seconds())
            try:
                await self._membership.heartbeat()
            except HeadraceError as error:
                logger.warning("worker %s: a heartbeat failed: %s", self._worker, error)

    # Signs of life

    async def _first_sign(self) -> MessageQueue | None:
        """Return a sign of life, before anybody waits for one, or None if this worker may not."""
        try:
            queue = await self._signs_queue()
            self._signs.own = self.client_id
            await self._send_sign(queue)
        except NoPermissionError as error:
            logger.warning(
                "worker %s may not write to topic %s: the others would notice in two minutes only"
                " that it is cut off: %s",
                *(self._worker, self._signs_topic, error),
            )
            self.client_id = self._new_id(signs="")
            return None
        return queue

    async def _signs_queue(self) -> MessageQueue:
        from headrace.client import AsyncAdmin

        admin = AsyncAdmin(self._client)
        if not await admin.topic_exists(self._signs_topic):
            # A worker that cannot reach the log has lost it, and one that can must be heard.
            home = (await self._client.queues(self._topic))[0].broker
            await admin.create_topic(self._signs_topic, 1, brokers=[home])
        return (await self._client.queues(self._signs_topic))[0]

    async def _send_sign(self, queue: MessageQueue, *, once: bool = False) -> None:
        from headrace.client import AsyncProducer, Message

        message = Message(topic=self._signs_topic, body=self.client_id.encode())
        await AsyncProducer(self._client).send(message, queue, once=once)

    async def _give_signs(self, queue: MessageQueue) -> None:
        while True:
            await asyncio.sleep(self._interval.total_seconds())
            try:
                await self._send_sign(queue, once=True)
            except HeadraceError as error:
                logger.warning("worker %s: a sign of life failed: %s", self._worker, error)

    async def _hear_signs(self, queue: MessageQueue) -> None:
        from headrace.client import AsyncPullConsumer

        puller, begin = AsyncPullConsumer(self._client), -1
        while True:
            try:
                begin = await puller.end_offset(queue) if begin < 0 else begin
                found = await puller.pull(queue, begin, wait=self._interval)
            except HeadraceError as error:
                logger.warning("worker %s hears no signs of life: %s", self._worker, error)
                await asyncio.sleep(self._interval.total_seconds())
                continue
            for message in found.messages():
                self._signs.hear(message.body.decode(errors="replace"))
            begin = found.next_offset


def _name_in(client_id: str) -> str:
    return client_id.rpartition(_MARK)[0] or client_id


def _gives_signs(client_id: str) -> bool:
    return client_id.rpartition(_MARK)[2].startswith(_SIGNS)
