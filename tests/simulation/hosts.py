"""Processes that a Connect worker starts: engines and hosts, with what the system does for them."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NoReturn, Self
from unittest.mock import patch

import pyarrow as pa

import headrace.connect.data.edges
import headrace.connect.data.engine
import headrace.connect.data.jobs
import headrace.connect.data.process
import headrace.connect.hosts.channel
import headrace.connect.hosts.host
import headrace.connect.hosts.launcher
import headrace.connect.running
import headrace.spark.driver
import headrace.spark.ticks
from headrace.connect.channel import HostEnded, encode
from headrace.connect.data.engine import serve
from headrace.connect.hosts.fork_client import Keeper
from headrace.connect.plugins.catalog import Catalog, Plugin
from headrace.connect.worker import Startup, WorkerSettings
from headrace.errors import StoreLockedError
from tests.simulation.outside import LINES_SOURCE, STORE_SINK
from tests.simulation.pipes import Pipes, SimulatedSocket
from tests.simulation.spark import (
    Call,
    Frame,
    SimulatedBatch,
    SimulatedQuery,
    SimulatedSession,
    _Writer,
)
from tests.simulation.threads import SimulatedLock, SimulatedLoop
from tests.simulation.world import Killed, Process, SimulatedThread, Variable, World, this_thread

__all__ = ["Machinery", "connect_variables"]

#: What a process that was killed ends with.
_SIGKILL = 9


def connect_variables() -> list[Variable]:
    """List what each process has for itself of the modules of Connect."""
    edges: Any = headrace.connect.data.edges
    channel = edges._channel.__wrapped__
    return [
        (edges, "_channel", lambda: lru_cache(maxsize=256)(channel)),
        (edges, "_unflushed", dict),
    ]


class Machinery:
    """Makes processes for those that ask, and tells of their ends.

    Parameters
    ----------
    world
        Where they run.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.pipes = Pipes(world)
        #: What runs now, by kind: hosts with the folder of their worker.
        self.hosts: dict[Process, str] = {}
        #: Called with each host that is made.
        self.on_fork: Callable[[Process], None] = lambda _: None
        self.engines: list[Process] = []
        self._numbers = itertools.count(1)
        self._exits: dict[Process, int] = {}
        self._locks: dict[str, Process] = {}
        self._watched: dict[tuple[Process, int], _Handle] = {}

    @property
    def me(self) -> Process:
        """The process that asks."""
        return self.pipes.process()

    def exit(self, status: int) -> NoReturn:
        """End the process that asks."""
        me = self.me
        self._exits.setdefault(me, status << 8)
        me.kill()
        raise Killed

    def program(self, process: Process, run: Callable[[], object]) -> None:
        """Run a program in a process, which ends with it."""

        def whole() -> None:
            status = 0
            try:
                run()
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else 1
            except Killed:
                raise
            except BaseException as error:
                self.world.tell(f"{process.name} ended by {error!r}")
                status = 70
            self.exit(status)

        self.world.start(process, whole)

    # Hosts

    def fork(self, client: _ForkClient, sockets: list[SimulatedSocket], *, leased: bool) -> Keeper:
        """Make a host and its keeper."""
        world, worker = self.world, self.me
        keeper, channel = sockets
        process = world.process(f"{worker.name}.host.{next(self._numbers)}", worker.machine)
        kept = keeper.given_to(Process(world, "keeper", worker.machine, 0))
        handle = os.open(os.devnull, os.O_RDONLY)
        watched = self._watched[worker, handle] = _Handle()
        why = ["exit"]

        def ended() -> None:
            self.hosts.pop(process, None)
            status = self._exits.get(process, _SIGKILL)
            message = encode(HostEnded(status, why[0], used=0))
            world.after(world.chance.uniform(0.0005, 0.01), partial(told, message))

        def told(message: bytes) -> None:
            if not worker.dead:
                with suppress(OSError):
                    kept.send(message)
                kept.close()
                watched.set()

        def heard() -> None:
            reason = "killed" if kept.end.parts else "orphaned"
            if not process.dead:
                why[0] = reason
                world.after(world.chance.uniform(0.0, 0.02), process.kill)

        def over() -> None:
            if not process.dead:
                why[0] = "lease"
                process.kill()

        process.on_death.append(ended)
        kept.end.on_news = heard
        if leased:
            client.leases.append(over)
        self.hosts[process] = client.folder
        self.on_fork(process)
        given = channel.given_to(process)
        self.program(process, lambda: headrace.connect.hosts.host.run(given))  # type: ignore[arg-type]
        all_gone = asyncio.get_running_loop().create_future()
        return Keeper(process.pid, handle, all_gone)

    def end_marked(self, mark: str) -> tuple[int, list[int]]:
        """End all hosts of a worker's folder."""
        folder = mark.partition("=")[2]
        found = [host for host, of in self.hosts.items() if of == folder]
        for host in found:
            host.kill()
        return len(found), []

    def locked(self, folder: Path) -> _Lock:
        """Take the folder of a worker.

        Raises
        ------
        StoreLockedError
            Another one has it.
        """
        holder = self._locks.get(str(folder))
        if holder is not None and not holder.dead:
            raise StoreLockedError(f"another worker uses {folder}")
        self._locks[str(folder)] = self.me
        return _Lock(lambda: self._locks.pop(str(folder), None))

    # Engines

    async def subprocess(
        self, *program: str, pass_fds: tuple[int, ...] = (), **_: object
    ) -> _Subprocess:
        """Start the engine."""
        assert "headrace.connect.data.engine" in program
        worker = self.me
        process = self.world.process(f"{worker.name}.engine{next(self._numbers)}", worker.machine)
        self.engines = [*(each for each in self.engines if not each.dead), process]
        channel = self.pipes.open[pass_fds[0]].given_to(process)

        def begin(settings: bytes) -> None:
            self.program(process, lambda: serve(pickle.loads(settings), channel))  # type: ignore[arg-type]

        return _Subprocess(process, begin)

    # Descriptors that loops watch

    def add_reader(
        self, loop: SimulatedLoop, fd: int, run: Callable[..., None], *given: object
    ) -> None:
        """Call something once a process has ended."""
        self._watched[loop.process, fd].watch(lambda: loop.call_soon_threadsafe(run, *given))

    def remove_reader(self, loop: SimulatedLoop, fd: int) -> None:
        """Forget a descriptor."""
        self._watched.pop((loop.process, fd), None)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have what starts processes and talks to them do it here.

        Caller: whoever has had drivers run on simulated Sparks.
        """
        starting = SimulatedLock(self.world)
        found: Any = vars(headrace.spark.driver)["get_session"]
        connect_to, sockets = SimulatedLoop.create_connection, self.pipes

        def get_session(*given: object) -> SimulatedSession:
            with starting:
                session: SimulatedSession = found(*given)
                return session

        async def create_connection(
            loop: SimulatedLoop,
            factory: Callable[[], Any],
            *place: Any,
            sock: Any = None,
            **more: Any,
        ) -> tuple[Any, Any]:
            if sock is not None:
                return await sockets.connected(loop, factory, sock)
            return await connect_to(loop, factory, *place, **more)

        # Bound methods would not be told whose loop it is.
        def add_reader(loop: SimulatedLoop, fd: int, *given: Any) -> None:
            self.add_reader(loop, fd, *given)

        def remove_reader(loop: SimulatedLoop, fd: int) -> None:
            self.remove_reader(loop, fd)

        launcher: Any = headrace.connect.hosts.launcher
        changes: list[tuple[Any, str, Any]] = [
            (headrace.spark.ticks, "TickStream", _TickStream),
            (headrace.spark.driver, "get_session", get_session),
            (headrace.spark.job, "get_session", get_session),
            (headrace.connect.data.engine, "get_session", get_session),
            (headrace.connect.data.jobs, "get_session", get_session),
            (headrace.connect.data.process, "Family", _Family),
            (launcher, "ForkClient", partial(_ForkClient, self)),
            (launcher, "_locked", self.locked),
            (launcher, "end_marked", self.end_marked),
            (headrace.connect.hosts.channel, "listen", self.pipes.listen),
            (headrace.connect.hosts.channel, "connect", self.pipes.connect),
            (headrace.connect.hosts.host, "set_up_logging", lambda: None),
            (headrace.connect.hosts.host, "mask_output", lambda _: None),
            (headrace.connect.running, "RestServer", _NoServer),
            (SimulatedLoop, "create_connection", create_connection),
            (SimulatedLoop, "add_reader", add_reader),
            (SimulatedLoop, "remove_reader", remove_reader),
            (socket, "socketpair", self._here(self.pipes.pair, socket.socketpair)),
            (
                asyncio,
                "create_subprocess_exec",
                self._here(self.subprocess, asyncio.create_subprocess_exec),
            ),
            (os, "_exit", self._here(self.exit, os._exit)),
            (traceback, "print_exc", self._here(self._told, traceback.print_exc)),
            (traceback, "print_exception", self._here(self._told, traceback.print_exception)),
            (Catalog, "installed", _few_plugins),
        ]
        with ExitStack() as stack:
            for place, name, instead in changes:
                stack.enter_context(patch.object(place, name, instead, create=True))
            try:
                yield
            finally:
                # What ends with its process must not end the one that runs all this.
                self.world.end()

    def _told(self, *_: object) -> None:
        """Write what a host shows into the story."""
        error = sys.exc_info()[1]
        if not self.me.dead:
            self.world.tell(f"{self.me.name} shows {error!r}")

    def _here(self, simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            return (real if this_thread() is None else simulated)(*given, **more)

        return call


class _ForkClient:
    """Stands in for the fork server: makes hosts, and ends them with their worker's lease."""

    def __init__(
        self, machinery: Machinery, _log: Path, marks: Mapping[str, str], *, warm: bool = False
    ) -> None:
        del warm
        self._machinery = machinery
        self._world = machinery.world
        (self.folder,) = marks.values()
        self.leases: list[Callable[[], None]] = []
        self._until = math.inf
        self._watches = False

    def begin(self) -> None:
        """Do nothing: it is there."""

    def live_until(self, time: float) -> None:
        self._until = time
        if not self._watches and time < math.inf:
            self._watches = True
            self._world.at(time, self._look)

    def _look(self) -> None:
        self._watches = False
        if self._until > self._world.now:
            self.live_until(self._until)
        else:
            for over in self.leases:
                over()

    async def fork(
        self, token: str, memory: int | None, descriptors: list[int], *, leased: bool
    ) -> Keeper:
        del token, memory
        sockets = [self._machinery.pipes.open[number] for number in descriptors[:2]]
        keeper = self._machinery.fork(self, sockets, leased=leased)
        await asyncio.sleep(self._world.chance.uniform(0.005, 0.05))
        return keeper

    async def close(self) -> None:
        """Do nothing."""


class _Handle:
    """A descriptor of a process."""

    def __init__(self) -> None:
        self._ended = False
        self._tell: Callable[[], object] = lambda: None

    def set(self) -> None:
        self._ended = True
        self._tell()

    def watch(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        if self._ended:
            tell()


class _Lock:
    def __init__(self, close: Callable[[], object]) -> None:
        self.close = close


class _Subprocess:
    """A process that asyncio has started: it begins when it has been told all."""

    def __init__(self, process: Process, begin: Callable[[bytes], None]) -> None:
        self.process = process
        self.pid = process.pid
        self.stdin = self
        self._begin = begin
        self._told = b""

    def write(self, data: bytes) -> None:
        self._told += data

    def close(self) -> None:
        self._begin(self._told)

    @property
    def returncode(self) -> int | None:
        return 0 if self.process.dead else None

    def kill(self) -> None:
        self.process.kill()

    async def wait(self) -> int:
        while not self.process.dead:
            await asyncio.sleep(0.05)
        return 0


class _Family:
    """Stands in for the search for what an engine has left: it ends by itself."""

    def __init__(self, _mark: str) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def look(self) -> None:
        """Do nothing."""

    def have_ended(self, _patience: float) -> bool:
        return True

    def end(self, _patience: float) -> list[int]:
        return []


class _NoServer:
    """Stands in for the REST server: what it would call is called directly."""

    url = ""

    def __init__(self, settings: WorkerSettings) -> None:
        self.startup = Startup(settings.name)
        self.on_failure: Callable[[BaseException], None] = lambda _: None

    def serve(self, _connect: object) -> None:
        """Do nothing."""

    def rest(self) -> None:
        """Do nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing."""


class _TickStream:
    """Stands in for a stream in Spark's memory."""

    def __init__(self, session: SimulatedSession) -> None:
        self.session = session
        self.payloads: list[bytes] = []
        self._waiting: list[SimulatedThread] = []
        self.frame = _TickFrame(session, self, [])

    def send(self, payload: bytes) -> None:
        self.session.require_java()
        self.payloads.append(payload)
        self.news()

    def news(self) -> None:
        for thread in self._waiting:
            self.session.world.wake(thread)
        self._waiting.clear()

    def wait(self) -> None:
        """Wait until something has come, or may have."""
        me = this_thread()
        assert me is not None
        self._waiting.append(me)
        self.session.world.block()


class _TickFrame(Frame):
    """Rows of a stream in memory, each of which a task of its own takes."""

    source: Any

    def mapInArrow(self, run: Callable[..., Any], _: str) -> _TickFrame:  # noqa: N802
        stream: _TickStream = self.source
        made = _TickFrame(self.session, _Ticked(run), [])
        made.stream = stream
        return made

    stream: _TickStream

    @property
    def writeStream(self) -> _TickWriter:  # noqa: N802
        return _TickWriter(self)


class _Ticked:
    """A source whose splits are rows."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, _: object) -> _Ticked:
        return self

    def streamReader(self, _: object) -> _Ticked:  # noqa: N802
        return self

    def read(self, payload: bytes) -> Iterator[pa.RecordBatch]:
        column = pa.array([payload], pa.binary())
        found: Iterator[pa.RecordBatch] = self._run(
            iter([pa.RecordBatch.from_arrays([column], ["value"])])
        )
        return found


class _TickWriter(_Writer):
    def start(self) -> _TickQuery:
        self._frame.session.require_java()
        return _TickQuery(self._frame, self._on_batch)


class _TickQuery(SimulatedQuery):
    """A query over a stream in memory: there is no planner."""

    frame: _TickFrame

    def stop(self) -> None:
        self.stopping = True
        self.frame.stream.news()
        super().stop()

    def _batches(self) -> None:
        stream, at = self.frame.stream, 0
        for number in itertools.count():
            while at == len(stream.payloads):
                if self.stopping:
                    return
                stream.wait()
            ticks, at = stream.payloads[at:], len(stream.payloads)
            batch = SimulatedBatch(self, None, ticks)
            call = Call(self._world, self.session.driver, partial(self._on_batch, batch, number))
            call.result()


def _few_plugins() -> Catalog:
    """List the plugins of the world: no others need be imported."""
    targets = (":".join(name.rsplit(".", 1)) for name in (LINES_SOURCE, STORE_SINK))
    lines, store = targets
    return Catalog([Plugin(lines, "connectors", "source"), Plugin(store, "connectors", "sink")])
