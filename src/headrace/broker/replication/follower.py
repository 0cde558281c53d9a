"""A follower at work: carries out what the rules of following say."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
import zlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace import errors
from headrace.backoff import Backoff
from headrace.broker.replication.remote import Remote
from headrace.failpoints import failpoint
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.replication import Greeting, TableRow, Tables, Welcome
from headrace.store.log import GoneError
from headrace.store.replication.copyist import cut_log, empty_store
from headrace.store.replication.following import (
    CopyBytes,
    Epoch,
    EpochTable,
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
    TruncateLog,
    Welcomed,
)
from headrace.store.replication.port import QueueRebuild, RebuildStage

if TYPE_CHECKING:
    from headrace.broker.replication.replicas import Replication
    from headrace.broker.snapshots import BrokerTables
    from headrace.protocol.frames import Command


# A follower fetches the old records of compacted topics that its commit log does not have.

#: Bytes of one answer.
_BYTES = 4 * 1024 * 1024
#: Seconds between two looks for queues that lack something, and before another try.
_LOOK = 0.5
_BUSY = 0.1


class Rebuilder:
    """Rebuilds one queue after the other.

    Parameters
    ----------
    replication
        This broker's part in replication.
    connect
        Makes the connection to the primary.
    """

    def __init__(self, replication: Replication, connect: Callable[[], Remote]) -> None:
        self._in_thread = replication.work.in_thread
        self._rebuilds = replication.store.rebuilds
        self._connect = connect
        self._complaint = ""

    async def run(self) -> None:
        """Look for queues that lack something, for as long as this broker follows."""
        while True:
            try:
                wanted = await self._in_thread(self._rebuilds.wanted)
                if wanted:
                    async with self._connect() as remote:
                        for entry in wanted:
                            await self._rebuild(remote, entry)
                self._complaint = ""
            except (errors.HeadraceError, OSError) as error:
                if str(error) != self._complaint:
                    logger.warning("a compaction log is not rebuilt yet: %s", error)
                self._complaint = str(error)
            await asyncio.sleep(_LOOK)

    async def _rebuild(self, remote: Remote, entry: QueueRebuild) -> None:
        call = self._in_thread
        try:
            if entry.stage is RebuildStage.PULLING:
                entry = await self._pull(remote, entry)
                failpoint("replica.rebuild.pulled")
                entry = await call(self._rebuilds.pulled, entry)
            failpoint("replica.rebuild.compacting")
            entry = await call(self._rebuilds.compact, entry)
        except (GoneError, errors.NotFoundError) as error:
            # The topic was deleted: the follower's own log says so, or will soon.
            logger.info(
                "queue %d of topic %r is not rebuilt: %s", entry.queue_id, entry.topic, error
            )
            await call(self._rebuilds.drop, entry)
            return
        logger.warning(
            "rebuilt the compaction log of queue %d of topic %r: %d records up to offset %d",
            entry.queue_id,
            entry.topic,
            entry.records,
            entry.upto,
        )

    async def _pull(self, remote: Remote, entry: QueueRebuild) -> QueueRebuild:
        """Pull everything before the own first offset."""
        call, fresh = self._in_thread, not entry.session
        while True:
            if fresh:
                entry = await call(self._rebuilds.begin, entry, uuid.uuid4().hex)
            answer = await self._ask(remote, entry, first=fresh)
            if answer is None:
                logger.info("queue %d of topic %r begins again", entry.queue_id, entry.topic)
                fresh = True
                continue
            fresh = False
            failpoint("replica.rebuild.received")
            following = int(answer.ext["nextOffset"])
            if zlib.crc32(answer.payload) != int(answer.ext["crc"]):
                raise errors.CorruptLogError(
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
            except errors.BrokerBusyError:
                await asyncio.sleep(_BUSY)
            except errors.HeadraceError as error:
                if getattr(error, "number", None) == ResponseCode.PULL_OFFSET_MOVED:
                    return None
                raise

    async def _end(self, remote: Remote, entry: QueueRebuild) -> None:
        with contextlib.suppress(errors.HeadraceError):
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


# The tables that a follower takes over from its primary, beside the log.

Versions = dict[str, int]
"""Version of each table, by name."""


def stamp(versions: Versions, started: int) -> str:
    """Name the state of the tables that messages cannot do without."""
    return f"{started}-{versions.get('topics')}-{versions.get('static_topics')}"


def own_stamp(tables: BrokerTables) -> str:
    """Name the state of this broker's tables."""
    return stamp({name: each.table.version for name, each in tables.saved.items()}, tables.started)


def changed(tables: BrokerTables, started: int, have: Versions) -> Tables:
    """Return the tables whose version is another than the follower's."""
    if started != tables.started:
        have = {}
    rows = {
        name: TableRow(version, msgspec.Raw(msgspec.json.encode(each.content())))
        for name, each in tables.saved.items()
        if (version := each.table.version) != have.get(name)
    }
    return Tables(started=tables.started, tables=rows)


def take_over(tables: BrokerTables, rows: dict[str, TableRow]) -> Versions:
    """Replace the tables that came; their versions at the primary."""
    for name, each in tables.saved.items():
        if name in rows:
            each.table.replace(msgspec.json.decode(rows[name].content, type=each.kind))
    return {name: row.version for name, row in rows.items()}


logger = logging.getLogger(__name__)

Reopen = Callable[[Callable[[], None]], None]
"""Stops the broker, makes a change to its closed store, and starts it again."""

#: A fetch waits so long at the primary for more, seconds.
_WAIT = 5.0
_PATIENCE = 10.0


class _Reopening(Exception):  # noqa: N818  (no failure)
    """The broker is about to stop and start again."""


class FollowerTask:
    """Follows a primary until it is stopped.

    Parameters
    ----------
    replication, tables
        This broker's part in replication, and what it takes over beside the log.
    reopen
        Stops and starts the broker around a change of its store.
    """

    def __init__(self, replication: Replication, tables: BrokerTables, reopen: Reopen) -> None:
        self._replication = replication
        self._tables = tables
        self._reopen = reopen
        self._settings = replication.settings
        self._port = replication.port
        self._primary = replication.state.primary
        newest = self._settings.follow_from == "newest"
        self._machine = Follower(self._port.head(replication.state.log), newest)
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
        rebuilder = Rebuilder(self._replication, self._remote)
        for name, work in (
            ("broker-follower", self._follow()),
            ("broker-tables", self._take_over()),
            ("broker-rebuilder", rebuilder.run()),
        ):
            self._tasks.append(self._replication.work.keep(name, work))

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
        rebuilding = self._replication.store.rebuilds.wanted()
        if rebuilding and not force:
            raise errors.NoPermissionError(
                f"this broker has yet to fetch old messages of {len(rebuilding)} queues of compacted "
                f"topics from {self._primary}, first topic {rebuilding[0].topic!r}",
                hint="wait until that is done; --force promotes it without them",
            )
        if not force and not self._machine.head.log:
            raise errors.NoPermissionError(
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
            raise errors.RequestTimeoutError(
                f"the last bytes of {self._primary}, up to position {position}, did not come "
                f"within {patience:g} s",
                hint="it takes no more writes: promote again when it is reachable, or stop it",
            ) from error

    def _remote(self) -> Remote:
        return Remote(self._primary, _PATIENCE, self._settings.peers)

    # The log

    async def _follow(self) -> None:
        backoff = Backoff(0.1, 5.0)
        while True:
            try:
                await self._session()
            except _Reopening:
                return
            except (errors.HeadraceError, OSError) as error:
                self._complain(error)
                self._machine.handle(Lost(self._port.kept()))
            if self._replication.doing == "following":
                backoff.reset()
            self._replication.doing = self._complaint or "connecting"
            await asyncio.sleep(backoff.next())

    def _complain(self, error: Exception) -> None:
        text = str(error)
        if text != self._complaint:
            logger.warning("following %s: %s", self._primary, text)
        self._complaint = text

    async def _session(self) -> None:
        """Follow over one connection, until it ends or there is nothing to be done."""
        async with self._remote() as remote:
            instruction: Instruction = Greet()
            while not isinstance(instruction, Halt):
                event = await self._perform(remote, instruction)
                instruction = self._machine.handle(event)
                self._progress.set()
            raise errors.StoreError(instruction.why, hint=instruction.hint)

    async def _perform(self, remote: Remote, instruction: Instruction) -> Event:
        if isinstance(instruction, Fetch):
            return await self._fetch(remote, instruction)
        if isinstance(instruction, CopyBytes):
            return await asyncio.wrap_future(
                self._port.copy(
                    instruction.base, instruction.position, instruction.content, sync=self._sync
                )
            )
        if isinstance(instruction, TruncateLog | Restart):
            self._change(instruction)
            raise _Reopening
        return await self._greet(remote)

    async def _greet(self, remote: Remote) -> Event:
        state = self._replication.state
        greeting = Greeting(
            follower=state.follower,
            address=self._replication.address,
            broker=self._settings.broker_name,
            cluster=self._settings.cluster,
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
            "address": self._replication.address,
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
        except errors.HeadraceError as error:
            if getattr(error, "number", None) == ResponseCode.PULL_OFFSET_MOVED:
                return Refused()
            raise
        self._replication.compared()
        if answer.ext["topics"] != stamp(self._versions, self._started):
            # What is in the log never has a topic that is not known here, come what may.
            await self._pull_tables(remote)
        self._sync = answer.ext["sync"] == "true" or self._settings.flush == "sync"
        content = memoryview(answer.payload)
        end, position = int(answer.ext["end"]), int(answer.ext["position"])
        self._replication.lag = max(end - position - len(content), 0)
        return Received(int(answer.ext["base"]), position, content)

    def _change(self, instruction: TruncateLog | Restart) -> None:
        """Have the store cut or emptied while the broker is down."""
        path, head = self._replication.folder / "store", self._machine.head
        if isinstance(instruction, TruncateLog):
            logger.warning(
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
            logger.warning(
                "starting over at position %d of the log of %s: %s",
                instruction.position,
                self._primary,
                instruction.why,
            )
        self._reopen(partial(empty_store, path, instruction.position))

    # Tables

    async def take_tables(self) -> None:
        """Take over what has changed, once; a primary that is gone has nothing to give."""
        with contextlib.suppress(errors.ConnectionFailedError, errors.RequestTimeoutError):
            async with self._remote() as remote:
                await self._pull_tables(remote)

    async def _take_over(self) -> None:
        """Take over topics, offsets and the like whenever they change."""
        pause = self._settings.follow_interval.total_seconds()
        while True:
            with contextlib.suppress(errors.HeadraceError, OSError):
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
            versions = take_over(self._tables, tables.tables)
            await self._tables.save()
            self._versions |= versions
            self._started = tables.started
