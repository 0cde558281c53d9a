"""The process of the engine, as its worker sees it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import pickle
import socket
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from headrace.connect.channel import EngineMessage, Level, QueryEvent, Reply, Request
from headrace.connect.hosts.keeper import cut_log, open_log
from headrace.connect.hosts.process_host import WorkerEnd
from headrace.connect.hosts.processes import Family
from headrace.connect.levels import LevelsToCome
from headrace.connect.lifecycle import Started
from headrace.errors import EngineAwayError, JobFailedError
from headrace.private import owners_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    from headrace.connect.data.positions import EngineSettings


logger = logging.getLogger(__name__)

_STARTING = timedelta(seconds=120)
#: Variable that all processes of an engine begin with.
_MARK = "HEADRACE_ENGINE"
#: Java has hundreds of threads here: with an arena of memory for each few, much is held unused.
_MEMORY = {"MALLOC_ARENA_MAX": "2"}
#: The engine, Java and Spark's workers may take so long to end by themselves, and so long when
#: they are killed, s.
_PARTING, _KILLED = 1.0, 3.0


class EngineProcess(WorkerEnd):
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
        heard: Callable[[QueryEvent], None],
        lost: Callable[[], None],
    ) -> None:
        super().__init__(EngineMessage)
        self._settings = settings
        self._folder = settings.folder
        self._log = settings.folder / "engine.log"
        self._heard = heard
        self._lost = lost
        #: What the process prints into, to be cut when it has grown long.
        self._printed: BinaryIO | None = None
        self._closing = False
        self._mark = uuid4().hex
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[None] | None = None
        #: Done when the process says nothing more.
        self._deaf: asyncio.Future[None] | None = None
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
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        self._ready = loop.create_future()
        try:
            with theirs:
                self._process = await self._spawn(theirs)
            assert self._process.stdin is not None
            # Secrets are among them: others on this machine see command lines.
            self._process.stdin.write(pickle.dumps(self._settings))
            self._process.stdin.close()
            self._deaf = loop.create_future()
            await loop.create_connection(lambda: self, sock=ours)
        except BaseException:
            # The next one who asks begins anew.
            self._ready = None
            ours.close()
            self._close_log()
            raise
        for name, level in self._levels.in_order():
            self.tell(Level(name, level))

    async def _spawn(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        self._printed = open_log(self._log)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.connect.data.engine"),
            *("--channel", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            start_new_session=True,
            env={**os.environ, **_MEMORY, _MARK: self._mark},
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note that the process says nothing more; end one that said what nobody can read."""
        if isinstance(exc, ValueError):
            logger.error("the engine is ended, as it is of another version: %s", exc)
        if exc is not None and self._process is not None and self._process.returncode is None:
            self._process.kill()
        assert self._deaf is not None
        self._close_log()
        self._deaf.set_result(None)
        self._gone()

    def _hear(self, message: EngineMessage) -> None:
        match message:
            case Started() if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            case Reply():
                self._answered(message)
            case QueryEvent():
                self._heard(message)
        if self._printed is not None:
            cut_log(self._printed.fileno())

    def _close_log(self) -> None:
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    def _answered(self, reply: Reply) -> None:
        waiting = self._waiting.pop(reply.request, None)
        if waiting is None or waiting.done():
            return
        if reply.failure is None:
            waiting.set_result(reply.value)
        else:
            error = EngineAwayError if reply.passes else JobFailedError
            waiting.set_exception(error(reply.failure.summary))

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
        if not self._closing:
            self._lost()

    async def ask(self, make: Callable[[int], Request]) -> Any:
        """Ask for something and wait until it is done.

        Raises
        ------
        JobFailedError
            It cannot be done, or the engine ended meanwhile.
        """
        await self.open()
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self.tell(make(number))
        return await answer

    def set_level(self, logger: str, level: int) -> None:
        """Set the level of a logger in the engine, and in those that follow it."""
        self._levels.set(logger, level)
        self.tell(Level(logger, level))

    async def close(self) -> None:
        """End the process and what it has started."""
        self._closing = True
        if self._process is None:
            return
        with Family(f"{_MARK}={self._mark}") as family:
            await asyncio.to_thread(family.look)
            if self._channel is not None and self._deaf is not None:
                self._channel.close()
                await self._deaf
            await asyncio.to_thread(_part, family)
        await self._process.wait()
        self._process = None


def _part(family: Family) -> None:
    """Wait until a family has ended; kill those that take their time."""
    family.have_ended(_PARTING)
    left = family.end(_KILLED)
    if left:
        logger.warning("these processes of the engine are not proven gone: %s", left)
