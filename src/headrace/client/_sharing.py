"""Keeps a member's share of a group's queues up to date, whatever the member does with them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, Protocol

from headrace._setting import DeclaredSettings, setting
from headrace.errors import HeadraceError
from headrace.watched import OnFailure, watched_task

if TYPE_CHECKING:
    from headrace.client.membership import Membership
    from headrace.client.pulling import AsyncPullConsumer
    from headrace.client.settings import ClientSettings
    from headrace.protocol.routes import MessageQueue


logger = logging.getLogger(__name__)

#: Pause before the next look while not all of the share could be taken, in seconds.
_SOON = 1.0

Start = Literal["first", "last"] | datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions(DeclaredSettings):
    """Options of all consumers that are members of groups."""

    VARIABLES = ""
    TOLD_AS = "option {}"

    start: Start = setting("last", doc="Where to begin in a queue without an offset of the group.")
    wait: timedelta = setting(
        timedelta(seconds=15), doc="How long the broker holds back a pull that finds nothing."
    )
    committed: bool = setting(
        default=False, doc="Read only what is committed of what jobs write, and each message once."
    )


class QueueOwner(Protocol):
    """A consumer that reads its share of the queues."""

    def held(self) -> Collection[MessageQueue]:
        """List the queues that it reads now."""
        ...

    async def take(self, queues: list[MessageQueue]) -> bool:
        """Begin to read queues; return False if some of them can only be had later."""
        ...

    async def give_up(self, queues: set[MessageQueue]) -> None:
        """Stop reading queues: other members read them from now on."""
        ...


class Sharing:
    """Sends a member's heartbeats, and hands its owner the queues that it must read.

    Caller: AsyncGroupConsumer, AsyncPushConsumer.

    Parameters
    ----------
    on_failure
        Called with an error that has ended it.
    """

    def __init__(
        self,
        membership: Membership,
        owner: QueueOwner,
        settings: ClientSettings,
        on_failure: OnFailure,
    ) -> None:
        #: How often the share has changed.
        self.rebalances = 0
        self._membership = membership
        self._owner = owner
        self._settings = settings
        self._group = membership.role.group
        self._settled = True
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Join the group and take a share."""
        await self._membership.heartbeat()
        await self.rebalance()
        for name, work in (
            ("heartbeats", self._keep_alive(self._settings.heartbeat_interval)),
            ("share", self._keep_balanced(self._settings.rebalance_interval)),
        ):
            task = watched_task(
                work, name=f"group-{name} {self._group}", on_failure=self._on_failure
            )
            self._tasks.append(task)

    async def stop(self) -> None:
        """Stop taking and giving up queues, and end the heartbeats."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def leave(self) -> None:
        """Tell the brokers that this member leaves."""
        try:
            await self._membership.leave()
        except HeadraceError as error:
            logger.warning("group %r: leaving it failed: %s", self._group, error)

    async def rebalance(self) -> None:
        """Work out the share anew, and take and give up what differs."""
        held = set(self._owner.held())
        wanted: set[MessageQueue] = set()
        self._settled = True
        for topic in self._membership.role.topics:
            share = await self._membership.share(topic)
            if share is None:
                self._settled = False
                wanted.update(queue for queue in held if queue.topic == topic)
            else:
                wanted.update(share)
        lost, gained = held - wanted, sorted(wanted - held)
        if lost:
            await self._owner.give_up(lost)
        if gained and not await self._owner.take(gained):
            self._settled = False
        self.rebalances += bool(lost or gained)

    async def _keep_alive(self, interval: timedelta) -> None:
        while True:
            await asyncio.sleep(interval.total_seconds())
            try:
                await self._membership.heartbeat()
            except HeadraceError as error:
                logger.warning("group %r: heartbeat failed: %s", self._group, error)

    async def _keep_balanced(self, interval: timedelta) -> None:
        changed = self._membership.changed
        while True:
            pause = interval.total_seconds()
            try:
                async with asyncio.timeout(pause if self._settled else min(pause, _SOON)):
                    await changed.wait()
            except TimeoutError:
                pass
            changed.clear()
            try:
                await self.rebalance()
            except HeadraceError as error:
                self._settled = False
                logger.warning("group %r: rebalance failed: %s", self._group, error)


async def start_offset(puller: AsyncPullConsumer, queue: MessageQueue, start: Start) -> int:
    """Return where a group begins in a queue: where it left off, else where ``start`` says."""
    committed = await puller.committed(queue)
    return await first_offset(puller, queue, start) if committed is None else committed


async def first_offset(puller: AsyncPullConsumer, queue: MessageQueue, start: Start) -> int:
    """Return where a reader begins in a queue that it has not read before."""
    if start == "first":
        return await puller.begin_offset(queue)
    if start == "last":
        return await puller.end_offset(queue)
    return await puller.offset_for_time(queue, start)
