"""What threads wait for, in a simulated world: locks, events, queues, pools and event loops.

All of Python's own are made of locks and of one call that starts a thread.  So those two are
replaced, in simulated threads only, and everything above them is Python's own code.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any
from unittest.mock import patch

from headrace.errors import HeadraceError
from tests.simulation.world import BEGIN, Killed, SimulatedThread, World, this_thread


class SimulatedLock:
    """A lock that hands the turn on where a real one would block."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False
        self._waiting: list[SimulatedThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it."""
        world, me = self._world, this_thread()
        if me is None:
            assert not self._held or not blocking, "only simulated threads wait"
            taken, self._held = not self._held, True
            return taken
        if me.deaf:
            if self._held:
                raise Killed
        elif blocking:
            world.pause()
        if not self._held:
            self._held = True
            return True
        if not blocking:
            return False
        deadline = None if timeout < 0 else world.now + timeout
        while self.locked():
            rest = None if deadline is None else deadline - world.now
            if rest is not None and rest <= 0:
                return False
            self._waiting.append(me)
            try:
                world.block(rest)
            finally:
                if me in self._waiting:
                    self._waiting.remove(me)
        self._held = True
        return True

    def release(self) -> None:
        """Let it go."""
        me = this_thread()
        if not self._held and not (me is not None and me.deaf):
            raise RuntimeError("release unlocked lock")
        self._held = False
        if self._waiting:
            self._world.wake(self._waiting.pop(0))

    def locked(self) -> bool:
        """Tell whether somebody has it."""
        return self._held

    def _at_fork_reinit(self) -> None:
        self._held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class SimulatedRLock:
    """A lock that its holder may take again."""

    def __init__(self, world: World) -> None:
        self._lock = SimulatedLock(world)
        self._owner: SimulatedThread | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, or take it again."""
        me = this_thread()
        if self._count and self._owner is me:
            self._count += 1
            return True
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            self._owner, self._count = me, 1
        return taken

    def release(self) -> None:
        """Let it go, once."""
        me = this_thread()
        if self._owner is not me or not self._count:
            if me is not None and me.deaf:
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def _release_save(self) -> tuple[int, SimulatedThread | None]:
        saved = self._count, self._owner
        self._count, self._owner = 0, None
        self._lock.release()
        return saved

    def _acquire_restore(self, saved: tuple[int, SimulatedThread | None]) -> None:
        self._lock.acquire()
        self._count, self._owner = saved

    def _is_owned(self) -> bool:
        return bool(self._count) and self._owner is this_thread()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Selector:
    """Stands in for a loop's selector: it waits for calls from other threads, and for time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._woken = False
        self._thread: SimulatedThread | None = None

    def select(self, timeout: float | None) -> list[Any]:
        world = self._world
        if self._woken or timeout == 0:
            world.pause()
        else:
            self._thread = this_thread()
            world.block(timeout)
            self._thread = None
        self._woken = False
        return []

    def wake(self) -> None:
        self._woken = True
        if self._thread is not None:
            self._world.wake(self._thread)

    def close(self) -> None:
        """Do nothing."""


Connect = Callable[["SimulatedLoop", str, int, Callable[[], asyncio.Protocol]], Any]


class SimulatedLoop(asyncio.BaseEventLoop):
    """asyncio's own loop over a clock and connections that are simulated."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._selector = _Selector(world)
        me = this_thread()
        assert me is not None
        self.process = me.process
        self.process.loops.append(self)
        self.connect: Connect | None = world.connect

    def __del__(self) -> None:
        """Do nothing: a process that dies closes no loop."""

    def time(self) -> float:
        return self._world.now

    def _process_events(self, events: list[Any]) -> None:
        del events

    def _write_to_self(self) -> None:
        self._selector.wake()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.process.dead:
            self._world.tell(f"{self.process.name}: {context.get('message')} {context}")

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        assert self.connect is not None, "this world has no network"
        await asyncio.sleep(0.0002)
        protocol = protocol_factory()
        transport = await self.connect(self, host, port, protocol)
        protocol.connection_made(transport)
        return transport, protocol

    def abandon(self) -> None:
        """Close what its tasks have begun; nobody sees what that does."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            with suppress(BaseException):
                task.get_coro().close()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]


def sleep(world: World, seconds: float) -> None:
    """Let others go on for a while."""
    deadline = world.now + seconds
    while (rest := deadline - world.now) > 0:
        world.block(rest)


def persist(world: World, who: str, run: Callable[[], object]) -> None:
    """Try something until no error of ours comes."""
    while True:
        try:
            run()
        except HeadraceError as error:
            world.tell(f"{who} tries again after: {error.message[:90]}")
            sleep(world, 0.2)
        else:
            return


@contextmanager
def threads_of(world: World) -> Iterator[None]:
    """Have simulated threads wait and start others in this world, and see its clock."""

    def here(simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            return (real if this_thread() is None else simulated)(*given, **more)

        return call

    owners: list[Any] = []

    def start_thread(run: Callable[..., object], given: tuple[Any, ...]) -> int:
        me = this_thread()
        assert me is not None
        # Where Python keeps it, to be joined, is a lock that ends with the thread.
        owner = getattr(run, "__self__", None)
        owners.append(owner)

        def ends() -> None:
            try:
                run(*given)
            finally:
                lock = getattr(owner, "_tstate_lock", None)
                if lock is not None and lock.locked():
                    lock.release()

        return world.start(me.process, ends).number

    lock = here(lambda: SimulatedLock(world), threading.Lock)
    reentrant = here(lambda: SimulatedRLock(world), threading.RLock)
    clocks: dict[str, Callable[..., object]] = {
        "time": lambda: BEGIN + world.now,
        "time_ns": lambda: int((BEGIN + world.now) * 1e9),
        "monotonic": lambda: world.now,
        "monotonic_ns": lambda: int(world.now * 1e9),
        "perf_counter": lambda: world.now,
        "clock_gettime": lambda _: world.now,
        "sleep": lambda seconds: sleep(world, seconds),
    }
    module: Any = threading
    hook = threading.excepthook

    def ended(told: threading.ExceptHookArgs) -> None:
        if this_thread() is None:
            hook(told)
        elif told.exc_type is not Killed:
            world.tell(f"{told.thread} ended by {told.exc_value!r}")

    with ExitStack() as stack:
        for name, real in (("Lock", lock), ("_allocate_lock", lock), ("RLock", reentrant)):
            stack.enter_context(patch.object(module, name, real))
        sentinel = here(lambda: SimulatedLock(world), module._set_sentinel)
        stack.enter_context(patch.object(module, "_set_sentinel", sentinel))
        starter = here(start_thread, module._start_new_thread)
        stack.enter_context(patch.object(module, "_start_new_thread", starter))
        stack.enter_context(patch.object(module, "_time", here(lambda: world.now, time.monotonic)))
        stack.enter_context(patch.object(queue, "time", here(lambda: world.now, time.monotonic)))
        stack.enter_context(patch.object(module, "excepthook", ended))
        simple = here(queue._PySimpleQueue, queue.SimpleQueue)  # type: ignore[attr-defined]
        stack.enter_context(patch.object(queue, "SimpleQueue", simple))
        guard = _Guard(SimulatedLock(world))
        stack.enter_context(patch.object(concurrent.futures.thread, "_global_shutdown_lock", guard))
        for name, clock in clocks.items():
            stack.enter_context(patch.object(time, name, here(clock, getattr(time, name))))
        loops = here(lambda: SimulatedLoop(world), asyncio.new_event_loop)
        stack.enter_context(patch.object(asyncio, "new_event_loop", loops))
        pool: Any = concurrent.futures.thread.ThreadPoolExecutor
        make_pool = pool.__init__

        def made(self: Any, *given: Any, **more: Any) -> None:
            make_pool(self, *given, **more)
            if this_thread() is not None:
                self._threads = _InOrder()

        stack.enter_context(patch.object(pool, "__init__", made))
        _number_futures(stack)
        # Python joins the threads of pools when it ends.
        queues: Any = patch.object(concurrent.futures.thread, "_threads_queues", {})
        stack.enter_context(queues)
        yield
    for owner in owners:
        # Its process was killed before it began: to Python it is about to.
        module._limbo.pop(owner, None)


def _number_futures(stack: ExitStack) -> None:
    """Have futures of simulated threads waited for in the order in which they were made.

    Python takes their locks by address, which is another one in each process.
    """
    futures: Any = concurrent.futures._base
    make, numbers = futures.Future.__init__, itertools.count()

    def made(self: Any) -> None:
        make(self)
        if this_thread() is not None:
            self._made = next(numbers)

    def hashed(self: Any) -> int:
        number: int | None = vars(self).get("_made")
        return object.__hash__(self) if number is None else number

    def acquire(self: Any, some: Iterable[Any]) -> None:
        self.futures = sorted(some, key=hash)

    for place, name, instead in (
        (futures.Future, "__init__", made),
        (futures.Future, "__hash__", hashed),
        (futures._AcquireFutures, "__init__", acquire),
    ):
        stack.enter_context(patch.object(place, name, instead))


class _InOrder(dict[Any, None]):
    """Stands in for the set of a pool's threads, which are joined in its order: by address."""

    def add(self, one: Any) -> None:
        self[one] = None


class _Guard:
    """A lock of Python's pools, which simulated threads hold while they wait."""

    def __init__(self, simulated: SimulatedLock) -> None:
        self._simulated = simulated
        self._real = threading.Lock()

    def __enter__(self) -> None:
        me = this_thread()
        if me is None:
            self._real.acquire()
        elif not me.deaf:
            self._simulated.acquire()

    def __exit__(self, *_: object) -> None:
        me = this_thread()
        if me is None:
            self._real.release()
        elif self._simulated.locked():
            self._simulated.release()
