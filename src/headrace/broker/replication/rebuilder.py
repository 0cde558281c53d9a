"""A follower fetches the old records of compacted topics that its commit log does not have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
import zlib
from typing import TYPE_CHECKING

from headrace.errors import BrokerBusyError, CorruptLogError, HeadraceError, NotFoundError
from headrace.failpoints import failpoint
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.store.replication.rebuild import Stage
from headrace.store.segments import GoneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.core import Core
    from headrace.broker.replication.remote import Remote
    from headrace.protocol.frames import Command
    from headrace.store.replication.rebuild import QueueRebuild

__all__ = ["Rebuilder"]

_log = logging.getLogger(__name__)

#: Bytes of one answer.
_BYTES = 4 * 1024 * 1024
#: Seconds between two looks for queues that lack something, and before another try.
_LOOK = 0.5
_BUSY = 0.1


class Rebuilder:
    """Rebuilds one queue after the other.

    Parameters
    ----------
    core
        This broker.
    connect
        Makes the connection to the primary.
    """

    def __init__(self, core: Core, connect: Callable[[], Remote]) -> None:
        self._core = core
        self._rebuilds = core.store.rebuilds
        self._connect = connect
        self._complaint = ""

    async def run(self) -> None:
        """Look for queues that lack something, for as long as this broker follows."""
        while True:
            try:
                wanted = await self._core.in_thread(self._rebuilds.wanted)
                if wanted:
                    async with self._connect() as remote:
                        for entry in wanted:
                            await self._rebuild(remote, entry)
                self._complaint = ""
            except (HeadraceError, OSError) as error:
                if str(error) != self._complaint:
                    _log.warning("a compaction log is not rebuilt yet: %s", error)
                self._complaint = str(error)
            await asyncio.sleep(_LOOK)

    async def _rebuild(self, remote: Remote, entry: QueueRebuild) -> None:
        call = self._core.in_thread
        try:
            if entry.stage is Stage.PULLING:
                entry = await self._pull(remote, entry)
                failpoint("replica.rebuild.pulled")
                entry = await call(self._rebuilds.pulled, entry)
            failpoint("replica.rebuild.compacting")
            entry = await call(self._rebuilds.compact, entry)
        except (GoneError, NotFoundError) as error:
            # The topic was deleted: the follower's own log says so, or will soon.
            _log.info("queue %d of topic %r is not rebuilt: %s", entry.queue_id, entry.topic, error)
            await call(self._rebuilds.drop, entry)
            return
        _log.warning(
            "rebuilt the compaction log of queue %d of topic %r: %d records up to offset %d",
            entry.queue_id,
            entry.topic,
            entry.records,
            entry.upto,
        )

    async def _pull(self, remote: Remote, entry: QueueRebuild) -> QueueRebuild:
        """Pull everything before the own first offset."""
        call, fresh = self._core.in_thread, not entry.session
        while True:
            if fresh:
                entry = await call(self._rebuilds.begin, entry, uuid.uuid4().hex)
            answer = await self._ask(remote, entry, first=fresh)
            if answer is None:
                _log.info("queue %d of topic %r begins again", entry.queue_id, entry.topic)
                fresh = True
                continue
            fresh = False
            failpoint("replica.rebuild.received")
            following = int(answer.ext["nextOffset"])
            if zlib.crc32(answer.payload) != int(answer.ext["crc"]):
                raise CorruptLogError(
                    f"records of queue {entry.queue_id} of topic {entry.topic!r} arrived damaged"
                )
            entry = await call(self._rebuilds.append, entry, answer.payload, following)
            failpoint("replica.rebuild.appended")
            if following >= entry.upto:
                await self._end(remote, entry)
                return entry

    async def _ask(self, remote: Remote, entry: QueueRebuild, *, first: bool) -> Command | None:
        """Ask for the next records; None when the session is over."""
        while True:
            try:
                return await remote.ask(RequestCode.PULL_RECORDS, ext=_fields(entry, first=first))
            except BrokerBusyError:
                await asyncio.sleep(_BUSY)
            except HeadraceError as error:
                if getattr(error, "number", None) == ResponseCode.PULL_OFFSET_MOVED:
                    return None
                raise

    async def _end(self, remote: Remote, entry: QueueRebuild) -> None:
        with contextlib.suppress(HeadraceError):
            fields = _fields(entry, first=False) | {"end": "true"}
            await remote.ask(RequestCode.PULL_RECORDS, ext=fields)


def _fields(entry: QueueRebuild, *, first: bool) -> dict[str, str]:
    return {
        "topic": entry.topic,
        "queueId": str(entry.queue_id),
        "birth": str(entry.birth),
        "offset": str(entry.next_offset),
        "upto": str(entry.upto),
        "session": entry.session,
        "first": str(first).lower(),
        "maxBytes": str(_BYTES),
    }
