"""A world in one thread: a clock that jumps from event to event, and processes with loops of it.

What happens next is the earliest event; all chance comes from one seed.  A process that sleeps
keeps its events until it wakes; those of a dead one are dropped.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import patch

from headrace import failpoints
from headrace.client import _retry
from headrace.client._loop import called_by

T = TypeVar("T")

#: The simulated time at which a world begins, s since 1970.
BEGIN = 1_700_000_000.0


class Killed(BaseException):
    """The process that runs this code is dead."""


class StuckError(AssertionError):
    """Somebody waits, and nothing will ever happen again."""


@dataclass(order=True)
class _Event:
    at: float
    number: int
    process: Process | None = field(compare=False)
    run: Callable[[], None] = field(compare=False)
    #: A step of a coroutine, and no timer and nothing that comes from elsewhere.
    is_step: bool = field(compare=False, default=False)


class Process:
    """A simulated process: its loop, what it keeps between calls, whether it lives."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.dead = False
        self.asleep = False
        self.backlog: list[_Event] = []
        self.loop = SimulatedLoop(self)  # type: ignore[abstract]
        #: Connections of Spark's worker of this process, by handle of the job.
        self.connections: dict[tuple[int, str], Any] = {}
        self.on_death: list[Callable[[], None]] = []
        #: What a dead process still does, unseen.
        self.last: list[Callable[[], None]] = []

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, and the world meanwhile; something may strike on the way."""
        if self.dead:
            coroutine.close()
            raise Killed
        strike, after = self.world.next_call()
        task: asyncio.Task[T] = self.loop.create_task(coroutine)
        events = 0
        while not task.done():
            if strike is not None and events == after:
                chosen, strike = strike, None
                chosen(self)
            self.world.step()
            events += 1
            if self.dead:
                raise Killed
        if strike is not None:
            strike(self)
        return task.result()

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine and do not wait for it."""
        self.loop.create_task(coroutine)
        if self.dead:
            self._drain()

    def kill(self) -> None:
        """End the process: its connections break, and nothing of it is ever heard of again."""
        if self.dead:
            return
        for broken in self.on_death:
            broken()
        self.dead = True
        self.last = [*self.world.take_steps(self), *(e.run for e in self.backlog if e.is_step)]
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self._drain()

    def _drain(self) -> None:
        """Let what has begun end by itself, out of this world, so that nothing dangles."""
        while self.last:
            last, self.last = self.last, []
            asyncio._set_running_loop(self.loop)
            try:
                for run in last:
                    run()
            finally:
                asyncio._set_running_loop(None)

    def wake(self) -> None:
        """Go on after a sleep, with everything that has come meanwhile."""
        self.asleep = False
        events, self.backlog = self.backlog, []
        for event in events:
            self.world.at(self.world.now, event.run, self).is_step = event.is_step


class World:
    """The clock, the events, and the processes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = 0.0
        self.current: Process | None = None
        #: What strikes at which call, counted over all processes, and after how many events.
        self.strikes: dict[int, tuple[Callable[[Process], None], int]] = {}
        self.calls = 0
        #: What strikes at which hit of a failpoint.
        self.point_strikes: dict[int, Callable[[Process], None]] = {}
        self.hits = 0
        #: Lets others go on while a driver waits.
        self.on_sleep: Callable[[], None] = lambda: None
        self.log: list[str] = []
        self._events: list[_Event] = []
        self._number = 0
        self._thread = threading.get_ident()

    def only_here(
        self, simulated: Callable[..., Any], real: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Give what is simulated in the thread of this world, and real in all others.

        Other tests leave threads behind, such as those of clients that nobody has closed.
        """

        def call(*given: Any) -> Any:
            here = threading.get_ident() == self._thread
            return simulated(*given) if here else real(*given)

        return call

    def tell(self, line: str) -> None:
        """Write into the story of this world."""
        self.log.append(f"{self.now:9.4f} {line}")

    def at(self, when: float, run: Callable[[], None], process: Process | None = None) -> _Event:
        """Let something happen later."""
        self._number += 1
        event = _Event(when, self._number, process, run)
        heapq.heappush(self._events, event)
        return event

    def take_steps(self, process: Process) -> list[Callable[[], None]]:
        """Give the steps that coroutines of a process are about to do."""
        return [
            event.run
            for event in sorted(self._events)
            if event.process is process and event.is_step
        ]

    def step(self) -> None:
        """Let the earliest event happen."""
        if not self._events:
            raise StuckError("nothing will ever happen again")
        event = heapq.heappop(self._events)
        self.now = max(self.now, event.at)
        process = event.process
        if process is None:
            event.run()
        elif process.dead:
            return
        elif process.asleep:
            process.backlog.append(event)
        else:
            asyncio._set_running_loop(process.loop)
            try:
                event.run()
            finally:
                asyncio._set_running_loop(None)

    def pass_time(self, seconds: float) -> None:
        """Let the world go on for a while."""
        over: list[bool] = []
        self.at(self.now + seconds, lambda: over.append(True))
        while not over:
            self.step()

    def next_call(self) -> tuple[Callable[[Process], None] | None, int]:
        """Count a call, and tell what strikes during it."""
        self.calls += 1
        return self.strikes.pop(self.calls, (None, 0))

    def hit(self, name: str) -> None:
        """Count a failpoint that a process passes, and let strike what is to strike there."""
        process = self.current
        if threading.get_ident() != self._thread or process is None:
            return
        self.hits += 1
        strike = self.point_strikes.pop(self.hits, None)
        if strike is not None:
            self.tell(f"{process.name} is at {name}")
            strike(process)
            if process.dead:
                raise Killed

    @contextmanager
    def inside(self, process: Process) -> Iterator[Process]:
        """Run code as a process does."""
        before, self.current = self.current, process
        try:
            yield process
        finally:
            self.current = before

    def _caller(self) -> Process | None:
        if threading.get_ident() != self._thread:
            return None
        assert self.current is not None, "blocking calls are made inside of a process"
        return self.current

    def _sleep(self, seconds: float) -> None:
        if self.current is not None and self.current.dead:
            raise Killed
        process = self.current
        self.on_sleep()
        self.pass_time(seconds)
        if process is not None and process.dead:
            raise Killed

    @contextmanager
    def running(self, seed: int) -> Iterator[None]:
        """Let the clocks of this thread be those of the world."""
        logging.disable(logging.ERROR)
        with ExitStack() as stack:
            stack.enter_context(called_by(self._caller))
            clocks: dict[str, Callable[..., object]] = {
                "time": lambda: BEGIN + self.now,
                "time_ns": lambda: int((BEGIN + self.now) * 1e9),
                "monotonic": lambda: self.now,
                "clock_gettime": lambda _: self.now,
                "sleep": self._sleep,
            }
            for name, clock in clocks.items():
                mine = self.only_here(clock, getattr(time, name))
                stack.enter_context(patch.object(time, name, mine))
            stack.enter_context(patch.object(failpoints, "_armed", _Points(self)))
            pauses = random.Random(seed)
            mine = self.only_here(pauses.uniform, _retry._jitter.uniform)
            stack.enter_context(patch.object(_retry._jitter, "uniform", mine))
            try:
                yield
            finally:
                logging.disable(logging.NOTSET)


class _Points:
    """Stands in for the failpoints that the environment arms."""

    def __init__(self, world: World) -> None:
        self._world = world

    def hit(self, name: str) -> None:
        self._world.hit(name)


class SimulatedLoop(asyncio.AbstractEventLoop):
    """An event loop whose time and events are the world's."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self.connect: Callable[[Process, str, int, Any], Any] | None = None

    def time(self) -> float:
        return self._world.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._process.dead:
            self._world.tell(f"{self._process.name}: {context.get('message')}")

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **more: Any) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, **more)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._process.dead:
            self._process.last.append(lambda: _run(handle))
        else:
            event = self._world.at(self._world.now, lambda: _run(handle), self._process)
            event.is_step = True
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._world.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._world.at(when, lambda: _run(handle), self._process)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled handle is passed over when its time comes."""

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        assert self.connect is not None, "this process has no network"
        await asyncio.sleep(0)
        protocol = protocol_factory()
        transport = self.connect(self._process, host, port, protocol)
        protocol.connection_made(transport)
        return transport, protocol


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()
