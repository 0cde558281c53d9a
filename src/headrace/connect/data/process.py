"""The process of the engine, as its worker sees it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import pickle
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from headrace.connect.hosts.keeper import cut_log, open_log
from headrace.connect.hosts.life import Terms
from headrace.connect.hosts.processes import Family
from headrace.connect.levels import LevelsToCome
from headrace.connect.lifecycle import Figures
from headrace.errors import EngineAwayError, JobFailedError
from headrace.private import owners_folder
from headrace.watched import watched_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.connect.data.positions import EngineSettings


# What a worker asks of its engine, and what the engine tells: one JSON object per line.


class TaskCopy(msgspec.Struct, frozen=True):
    """One copy of a task."""

    connector: str
    task: int
    generation: int


class StartQuery(msgspec.Struct, frozen=True, tag="start"):
    """Run a task's query."""

    request: int
    unit: TaskCopy
    role: str
    #: Where the task's host listens.
    address: str
    #: What the task's config asks for.
    terms: Terms = Terms()
    #: How many tasks the connector has.
    tasks: int = 1
    paused: bool = False
    #: The name under which its connector's positions are kept; empty: the connector's.
    kept_as: str = ""


class StopQuery(msgspec.Struct, frozen=True, tag="stop"):
    """End a task's query, behind the batch that is under way."""

    request: int
    unit: TaskCopy


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Begin no batch of a task, or go on."""

    request: int
    unit: TaskCopy
    held: bool


class Level(msgspec.Struct, frozen=True, tag="level"):
    """Set the level of a logger, and of those below it."""

    request: int
    logger: str
    level: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Say where a connector is."""

    request: int
    connector: str


class CommitPositions(msgspec.Struct, frozen=True, tag="commit"):
    """Commit other positions of a connector that does not run; an offset of None forgets."""

    request: int
    connector: str
    #: Name of each partition, and its offset.
    positions: dict[str, Any] = {}
    #: Forget all others.
    reset: bool = False


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Remove all that tasks of a connector have committed; none of them lives."""

    request: int
    connector: str


Command = StartQuery | StopQuery | Hold | Ask | CommitPositions | Forget | Level
"""What a worker asks."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Spark runs."""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """What came of a request."""

    request: int
    value: Any = None
    #: Why nothing came of it.
    problem: str = ""
    #: Whether the same request may succeed later: the brokers are away.
    passes: bool = False


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A query ended that nobody had asked to end."""

    unit: TaskCopy
    problem: str
    #: Whether it may go on later: the brokers are away.
    passes: bool = False


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """What a task has moved so far; told when it has changed."""

    unit: TaskCopy
    figures: Figures


class QueryWaits(msgspec.Struct, frozen=True, tag="waits"):
    """A query runs, and waits for something."""

    unit: TaskCopy
    #: What that is; empty: for nothing more.
    what: str


EngineEvent = Ready | Reply | Ended | Measured | QueryWaits
"""What the engine tells."""


logger = logging.getLogger(__name__)

_STARTING = timedelta(seconds=120)
#: The positions of a connector come in one line, however many partitions it reads.
_LONGEST_LINE = 256 << 20
#: Variable that all processes of an engine begin with.
_MARK = "HEADRACE_ENGINE"
#: Java has hundreds of threads here: with an arena of memory for each few, much is held unused.
_MEMORY = {"MALLOC_ARENA_MAX": "2"}
#: The engine, Java and Spark's workers may take so long to end by themselves, and so long when
#: they are killed, s.
_PARTING, _KILLED = 1.0, 3.0


class EngineProcess:
    """The engine's process, and what is asked of it.

    Parameters
    ----------
    settings
        Where it runs, and how it reaches the cluster.
    heard
        Hears what queries tell: what they have moved, that they wait, that they ended by themselves.
    lost
        Hears that the process died, and all queries with it.
    """

    def __init__(
        self,
        settings: EngineSettings,
        heard: Callable[[Ended | Measured | QueryWaits], None],
        lost: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._folder = settings.folder
        self._log = settings.folder / "engine.log"
        self._heard = heard
        self._lost = lost
        self._closing = False
        self._mark = uuid4().hex
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._levels = LevelsToCome()

    @property
    def pid(self) -> int | None:
        """Id of the process, while there is one."""
        return None if self._process is None else self._process.pid

    async def open(self) -> None:
        """Start the process and wait until Spark runs; do nothing where it does."""
        async with self._starting:
            if self._ready is None or self._ready.cancelled() or self._process is None:
                await self._begin()
        assert self._ready is not None
        await asyncio.wait_for(asyncio.shield(self._ready), _STARTING.total_seconds())

    async def _begin(self) -> None:
        owners_folder(self._folder)
        ours, theirs = socket.socketpair()
        program = (sys.executable, "-m", "headrace.connect.data.engine")
        self._ready = asyncio.get_running_loop().create_future()
        with theirs, open_log(self._log) as log:
            self._process = await asyncio.create_subprocess_exec(
                *program,
                *("--channel", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **_MEMORY, _MARK: self._mark},
            )
        assert self._process.stdin is not None
        # Secrets are among them: others on this machine see command lines.
        self._process.stdin.write(pickle.dumps(self._settings))
        self._process.stdin.close()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LONGEST_LINE)
        self._reading = watched_task(
            self._read(reader), name="connect-engine", on_failure=self._give_up
        )
        for name, level in self._levels.in_order():
            self._tell_level(name, level)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = msgspec.json.Decoder(EngineEvent)
        with open_log(self._log) as log, suppress(ConnectionError):
            async for line in reader:
                self._hear(decoder.decode(line))
                cut_log(log.fileno())
        self._gone()

    def _give_up(self, _error: BaseException) -> None:
        """End a process that nobody hears any more."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        self._gone()

    def _hear(self, event: EngineEvent) -> None:
        match event:
            case Ready() if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            case Reply():
                self._answered(event)
            case Ended() | Measured() | QueryWaits():
                self._heard(event)

    def _answered(self, reply: Reply) -> None:
        waiting = self._waiting.pop(reply.request, None)
        if waiting is None or waiting.done():
            return
        if not reply.problem:
            waiting.set_result(reply.value)
        elif reply.passes:
            waiting.set_exception(EngineAwayError(reply.problem))
        else:
            waiting.set_exception(JobFailedError(reply.problem))

    def _gone(self) -> None:
        error = EngineAwayError("the engine's process ended", hint=f"{self._log} tells more")
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            # Whoever waited may have been cancelled: then nobody needs to hear of it.
            self._ready.exception()
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.done():
                one.set_exception(error)
        self._ready = None
        if self._writer is not None:
            self._writer.close()
        if not self._closing:
            self._lost()

    async def ask(self, make: Callable[[int], Command]) -> Any:
        """Ask for something and wait until it is done.

        Raises
        ------
        JobFailedError
            It cannot be done, or the engine ended meanwhile.
        """
        await self.open()
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._write(make(number))
        return await answer

    def set_level(self, logger: str, level: int) -> None:
        """Set the level of a logger in the engine, and in those that follow it."""
        self._levels.set(logger, level)
        if self._writer is not None:
            self._tell_level(logger, level)

    def _tell_level(self, logger: str, level: int) -> None:
        self._write(Level(next(self._numbers), logger, level))

    def _write(self, command: Command) -> None:
        assert self._writer is not None
        self._writer.write(msgspec.json.encode(command) + b"\n")

    async def close(self) -> None:
        """End the process and what it has started."""
        self._closing = True
        if self._process is None:
            return
        with Family(f"{_MARK}={self._mark}") as family:
            await asyncio.to_thread(family.look)
            if self._writer is not None:
                self._writer.close()
                with suppress(ConnectionError):
                    await self._writer.wait_closed()
            await asyncio.to_thread(_part, family)
        await self._process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        self._process = None


def _part(family: Family) -> None:
    """Wait until a family has ended; kill those that take their time."""
    family.have_ended(_PARTING)
    left = family.end(_KILLED)
    if left:
        logger.warning("these processes of the engine are not proven gone: %s", left)
