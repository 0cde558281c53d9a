"""A follower at work: carries out what the rules of following say."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.replication.rebuilder import Rebuilder
from headrace.broker.replication.remote import Remote
from headrace.broker.replication.tables import stamp, take_over
from headrace.errors import (
    ConnectionFailedError,
    HeadraceError,
    NoPermissionError,
    RequestTimeoutError,
    StoreError,
)
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.replication import Greeting, Tables, Welcome
from headrace.store.replication.cutting import cut_log, empty_store
from headrace.store.replication.epochs import Epoch, EpochTable
from headrace.store.replication.following import (
    Copy,
    Cut,
    Event,
    Fetch,
    Follower,
    Greet,
    Halt,
    Instruction,
    LogHead,
    Lost,
    Received,
    Refused,
    Restart,
    Welcomed,
)

if TYPE_CHECKING:
    from headrace.broker.core import Core
    from headrace.broker.replication.tables import Versions

__all__ = ["FollowerTask", "Reopen"]

_log = logging.getLogger(__name__)

Reopen = Callable[[Callable[[], None]], None]
"""Stops the broker, makes a change to its closed store, and starts it again."""

#: A fetch waits so long at the primary for more, seconds.
_WAIT = 5.0
_PATIENCE = 10.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0


class _Reopening(Exception):  # noqa: N818  (no failure)
    """The broker is about to stop and start again."""


class FollowerTask:
    """Follows a primary until it is stopped.

    Parameters
    ----------
    core
        This broker.
    reopen
        Stops and starts the broker around a change of its store.
    """

    def __init__(self, core: Core, reopen: Reopen) -> None:
        self._core = core
        self._reopen = reopen
        self._replication = core.replication
        self._port = core.replication.port
        self._primary = core.replication.state.primary
        newest = core.settings.follow_from == "newest"
        self._machine = Follower(self._port.head(core.replication.state.log), newest)
        self._tasks: list[asyncio.Task[None]] = []
        self._progress = asyncio.Event()
        self._sync = True
        self._complaint = ""
        # Tables: versions that were taken over, and which run of the primary they are of.
        self._versions: Versions = {}
        self._started = 0
        self._turn = asyncio.Lock()

    def start(self) -> None:
        """Begin to follow."""
        rebuilder = Rebuilder(self._core, self._remote)
        for name, work in (
            ("broker-follower", self._follow()),
            ("broker-tables", self._take_over()),
            ("broker-rebuilder", rebuilder.run()),
        ):
            self._tasks.append(self._core.keep(name, work))

    async def stop(self) -> None:
        """Follow no more; what was received is appended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def require_whole(self, *, force: bool) -> None:
        """Refuse a promotion that would lose what this broker has yet to fetch.

        Raises
        ------
        NoPermissionError
            It has not, and nobody said that it is to be so.
        """
        rebuilding = self._core.store.rebuilds.wanted()
        if rebuilding and not force:
            raise NoPermissionError(
                f"this broker has yet to fetch old messages of {len(rebuilding)} queues of compacted "
                f"topics from {self._primary}, first topic {rebuilding[0].topic!r}",
                hint="wait until that is done; --force promotes it without them",
            )
        if not force and not self._machine.head.log:
            raise NoPermissionError(
                f"this broker never reached {self._primary}: it has nothing of its log",
                hint="see why: headrace broker replicas HOST:PORT; --force promotes it empty",
            )

    async def await_position(self, position: int, patience: float) -> None:
        """Wait until everything before a position is here.

        Raises
        ------
        RequestTimeoutError
            It did not come in time.
        """
        try:
            async with asyncio.timeout(patience):
                while self._machine.head.end < position:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"the last bytes of {self._primary}, up to position {position}, did not come "
                f"within {patience:g} s",
                hint="it takes no more writes: promote again when it is reachable, or stop it",
            ) from error

    def _remote(self) -> Remote:
        return Remote(self._primary, _PATIENCE, self._core.settings.peers)

    # The log

    async def _follow(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._session()
            except _Reopening:
                return
            except (HeadraceError, OSError) as error:
                self._complain(error)
                self._machine.handle(Lost(self._port.kept()))
            if self._replication.doing == "following":
                pause = _FIRST_PAUSE
            self._replication.doing = self._complaint or "connecting"
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _complain(self, error: Exception) -> None:
        text = str(error)
        if text != self._complaint:
            _log.warning("following %s: %s", self._primary, text)
        self._complaint = text

    async def _session(self) -> None:
        """Follow over one connection, until it ends or there is nothing to be done."""
        async with self._remote() as remote:
            instruction: Instruction = Greet()
            while not isinstance(instruction, Halt):
                event = await self._perform(remote, instruction)
                instruction = self._machine.handle(event)
                self._progress.set()
            raise StoreError(instruction.why, hint=instruction.hint)

    async def _perform(self, remote: Remote, instruction: Instruction) -> Event:
        if isinstance(instruction, Fetch):
            return await self._fetch(remote, instruction)
        if isinstance(instruction, Copy):
            return await self._core.stored(
                self._port.copy(
                    instruction.base, instruction.position, instruction.content, sync=self._sync
                )
            )
        if isinstance(instruction, Cut | Restart):
            self._change(instruction)
            raise _Reopening
        return await self._greet(remote)

    async def _greet(self, remote: Remote) -> Event:
        state = self._replication.state
        greeting = Greeting(
            follower=state.follower,
            address=self._core.address,
            broker=self._core.name,
            cluster=self._core.cluster,
        )
        answer = await remote.ask(RequestCode.GREET_PRIMARY, msgspec.json.encode(greeting))
        welcome = msgspec.json.decode(answer.payload, type=Welcome)
        self._replication.number = welcome.number
        self._replication.doing, self._complaint = "following", ""
        head = self._machine.head
        if head.begin == head.end and state.log != welcome.log:
            state.log = welcome.log
            self._replication.save()
            self._machine = Follower(self._port.head(welcome.log), self._machine.from_newest)
        epochs = EpochTable(tuple(Epoch(*row) for row in welcome.epochs))
        if epochs.latest > state.epoch:
            # A promotion goes beyond it, though its entry may never come here.
            state.epoch = epochs.latest
            self._replication.save()
        return Welcomed(LogHead(welcome.log, epochs, welcome.begin, welcome.end, welcome.newest))

    async def _fetch(self, remote: Remote, instruction: Fetch) -> Event:
        newest = self._machine.head.epochs.newest
        ext = {
            "follower": self._replication.state.follower,
            "address": self._core.address,
            "log": self._machine.head.log,
            "position": instruction.position,
            "durable": instruction.durable,
            "maxBytes": instruction.max_bytes,
            "wait": int(_WAIT * 1000),
            "epoch": newest.number,
            "epochStart": newest.start,
            "epochMark": newest.mark,
        }
        patience = _WAIT + _PATIENCE
        fields = {name: str(value) for name, value in ext.items()}
        try:
            answer = await remote.ask(RequestCode.FOLLOW_LOG, ext=fields, patience=patience)
        except HeadraceError as error:
            if getattr(error, "number", None) == ResponseCode.PULL_OFFSET_MOVED:
                return Refused()
            raise
        self._replication.compared()
        if answer.ext["topics"] != stamp(self._versions, self._started):
            # What is in the log never has a topic that is not known here, come what may.
            await self._pull_tables(remote)
        self._sync = answer.ext["sync"] == "true" or self._core.settings.flush == "sync"
        content = memoryview(answer.payload)
        end, position = int(answer.ext["end"]), int(answer.ext["position"])
        self._replication.lag = max(end - position - len(content), 0)
        return Received(int(answer.ext["base"]), position, content)

    def _change(self, instruction: Cut | Restart) -> None:
        """Have the store cut or emptied while the broker is down."""
        path, head = self._core.folder / "store", self._machine.head
        if isinstance(instruction, Cut):
            _log.warning(
                "the log goes up to %d, but is the log of %s only up to %d: the %d bytes behind "
                "are cut",
                head.end,
                self._primary,
                instruction.position,
                head.end - instruction.position,
            )
            self._reopen(partial(cut_log, path, instruction.position))
            return
        if head.end > head.begin:
            _log.warning(
                "starting over at position %d of the log of %s: %s",
                instruction.position,
                self._primary,
                instruction.why,
            )
        self._reopen(partial(empty_store, path, instruction.position))

    # Tables

    async def take_tables(self) -> None:
        """Take over what has changed, once; a primary that is gone has nothing to give."""
        with contextlib.suppress(ConnectionFailedError, RequestTimeoutError):
            async with self._remote() as remote:
                await self._pull_tables(remote)

    async def _take_over(self) -> None:
        """Take over topics, offsets and the like whenever they change."""
        pause = self._core.settings.follow_interval.total_seconds()
        while True:
            with contextlib.suppress(HeadraceError, OSError):
                async with self._remote() as remote:
                    while True:
                        await self._pull_tables(remote)
                        await asyncio.sleep(pause)
            await asyncio.sleep(pause)

    async def _pull_tables(self, remote: Remote) -> None:
        async with self._turn:
            answer = await remote.ask(
                RequestCode.FOLLOW_TABLES,
                msgspec.json.encode(self._versions),
                {"started": str(self._started)},
            )
            tables = msgspec.json.decode(answer.payload, type=Tables)
            versions = take_over(self._core, tables)
            await self._core.save()
            self._versions |= versions
            self._started = tables.started
