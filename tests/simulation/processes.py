"""What belongs to one process: its modules' variables, its id, its open files, its luck."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import headrace.client._connection
import headrace.client.blocking
import headrace.spark.worker
from headrace import backoff, failpoints
from headrace.client.blocking import LoopThread, loop_thread
from headrace.runtime.commit import drivers
from headrace.runtime.state import local
from tests.simulation.disk import SimulatedBatch, SimulatedDatabases, SimulatedReadOptions
from tests.simulation.spark import TaskNumbers
from tests.simulation.threads import SimulatedLock, SimulatedRLock, threads_of
from tests.simulation.world import Process, Variable, World, quietly, this_thread


def variables(world: Callable[[], World]) -> list[Variable]:
    """List the variables of modules that each process has for itself."""

    def lock() -> SimulatedLock:
        return SimulatedLock(world())

    worker, loop = headrace.spark.worker, headrace.client.blocking
    return [
        (worker, "_connections", dict),
        (worker, "_connecting", lock),
        (worker, "_clients", dict),
        (worker, "_modules_frozen", int),
        (loop, "_current", lambda: None),
        (loop, "_starting", lock),
        (loop, "_inherited", list),
        (headrace.client._connection, "_abandoned", list),
        (drivers, "_ended", set),
    ]


class _LockOfProcess:
    """Stands in for a lock that Python makes once per cached property, in each process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._locks: dict[Process, SimulatedRLock] = {}
        self._real = threading.RLock()

    def _lock(self) -> Any:
        me = this_thread()
        if me is None:
            return self._real
        if me.process not in self._locks:
            self._locks[me.process] = SimulatedRLock(self._world)
        return self._locks[me.process]

    def __enter__(self) -> None:
        self._lock().acquire()

    def __exit__(self, *_: object) -> None:
        self._lock().release()


class _LoopOfOthers:
    """Gives the loop of a client to threads of no world, whose process has no part in this one."""

    def __init__(self) -> None:
        # They may ask for it while the world begins: it is there already.
        loop = loop_thread()
        assert isinstance(loop, LoopThread), "a world within another"
        self.loop = loop
        self._starting = threading.Lock()

    def __call__(self) -> LoopThread | None:
        if this_thread() is not None:
            return None
        with self._starting:
            if self.loop.failure is not None:
                self.loop = LoopThread()
            return self.loop


@cache
def _cached_properties() -> list[cached_property[object]]:
    """Find the cached properties of the package, each of which has a lock."""
    return [
        value
        for name, module in sorted(sys.modules.items())
        if name.startswith("headrace.") and module is not None
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == name
        for value in vars(kind).values()
        if isinstance(value, cached_property)
    ]


class Points:
    """Stands in for the failpoints that the environment arms."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._hits: Counter[str] = Counter()
        #: What strikes at which hit of processes of a kind, or of a failpoint.
        self.strikes: dict[tuple[str, int], Callable[[Process], None]] = {}

    def hit(self, name: str) -> None:
        me = this_thread()
        if me is None:
            return
        self._world.pause()
        kind = me.process.kind
        for place in (kind, name):
            self._hits[place] += 1
            strike = self.strikes.pop((place, self._hits[place]), None)
            if strike is None:
                continue
            self._world.tell(f"{me.process.name} is at {name}")
            self._world.after(0.0, partial(strike, me.process))
            self._world.block(0.0)


@contextmanager
def processes_of(world: World) -> Iterator[tuple[Points, SimulatedDatabases, TaskNumbers]]:
    """Have what asks for its process, its files or chance get those of this world."""
    others = _LoopOfOthers()
    luck = random.Random(f"{world.seed} luck")
    databases_of_all, numbers = SimulatedDatabases(world), TaskNumbers()
    points = Points(world)

    def here(simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            return (real if this_thread() is None else simulated)(*given, **more)

        return call

    def process() -> Process:
        me = this_thread()
        assert me is not None
        return me.process

    really_open, really_close = os.open, os.close

    def open_file(*given: Any, **more: Any) -> int:
        world.check()
        fd = really_open(*given, **more)
        for each in world.processes:
            each.descriptors.discard(fd)
        process().descriptors.add(fd)
        return fd

    def close_file(fd: int) -> None:
        # What nobody has any more is closed by whoever sweeps it up, in whatever process.
        found = next((each for each in world.processes if fd in each.descriptors), None)
        me = this_thread()
        if found is not None:
            found.descriptors.discard(fd)
        if found is not None or me is None or not me.process.dead:
            really_close(fd)

    def close_all() -> None:
        really_close(nothing)
        for process in world.processes:
            for fd in process.descriptors:
                # What a thread that ends has swept up meanwhile is closed already.
                with suppress(OSError):
                    really_close(fd)
            process.descriptors.clear()

    def start_of(pid: int) -> str | None:
        found = [each for each in world.processes if each.pid == pid]
        return None if not found or found[0].dead else "1"

    nothing = really_open(os.devnull, os.O_RDONLY)

    def end_descriptors(of: Process) -> None:
        # The numbers stay taken: what is left of the process may still close them.
        for fd in of.descriptors:
            os.dup2(nothing, fd)

    make = world.process

    def made(name: str, machine: str) -> Process:
        process = make(name, machine)
        process.on_death.append(lambda: end_descriptors(process))
        return process

    def is_stopped(pid: int | None) -> bool:
        return any(each.pid == pid and each.asleep for each in world.processes)

    real: Any = vars(local)["Rdict"]
    rdict = here(databases_of_all.open, real)
    vars(rdict)["destroy"] = here(databases_of_all.destroy, real.destroy)
    worker: Any = headrace.spark.worker
    loop: Any = headrace.client.blocking
    still = SimpleNamespace(set_threshold=lambda *_: None, collect=int, freeze=lambda: None)
    changes: list[tuple[Any, str, Any]] = [
        (world, "process", made),
        (os, "getpid", here(lambda: process().pid, os.getpid)),
        (os, "urandom", here(luck.randbytes, os.urandom)),
        (random, "_urandom", here(luck.randbytes, random._urandom)),  # type: ignore[attr-defined]
        (os, "open", here(open_file, os.open)),
        (os, "close", close_file),
        (drivers, "_start_of", here(start_of, drivers._start_of)),
        (drivers, "_space", here(lambda: "1", drivers._space)),
        (drivers, "_boot", here(lambda: process().machine, drivers._boot)),
        (failpoints, "_armed", points),
        (backoff._chance, "random", here(luck.random, backoff._chance.random)),
        (local, "Rdict", rdict),
        (local, "_owner", here(databases_of_all.owner, local._owner)),
        (local, "_is_stopped", here(is_stopped, local._is_stopped)),
        (local, "WriteBatch", here(SimulatedBatch, vars(local)["WriteBatch"])),
        (local, "ReadOptions", here(SimulatedReadOptions, vars(local)["ReadOptions"])),
        (worker, "TaskContext", numbers),
        (worker, "gc", still),
        (worker, "traced", lambda *_: nullcontext()),
        (loop, "atexit", SimpleNamespace(register=lambda _: None)),
    ]
    with ExitStack() as stack:
        stack.enter_context(quietly())
        for place, name, instead in changes:
            stack.enter_context(patch.object(place, name, instead))
        for prop in _cached_properties():
            stack.enter_context(patch.object(prop, "lock", _LockOfProcess(world)))
        stack.enter_context(threads_of(world))
        enabled = gc.isenabled()
        # Finalizers run where they are due, and not when the collector happens to come.
        gc.disable()
        values = [(module, name, vars(module)[name]) for module, name, _ in world.variables]
        # Until all is as it was before: others may ask for their loop at any moment.
        with headrace.client.blocking.called_by(others):
            try:
                yield points, databases_of_all, numbers
            finally:
                world.end()
                for module, name, value in values:
                    setattr(module, name, value)
                headrace.client.blocking._current = others.loop
                # What ends later would close a number that is another's by then.
                gc.collect()
                close_all()
                if enabled:
                    gc.enable()
