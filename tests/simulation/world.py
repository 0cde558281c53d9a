"""A world of processes and threads of which one runs at a time: its seed decides which, and when.

The threads are real ones, and run the code that ships.  Each of them stands still but the one
whose turn it is; it hands the turn on where it would wait, and now and then elsewhere.  Time does
not pass while anybody can go on: then the clock jumps to the next event.
"""

from __future__ import annotations

import _thread
import asyncio
import heapq
import os
import random
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

#: The simulated time at which a world begins, s since 1970.
BEGIN = 1_700_000_000.0
#: What a turn takes at most, s.
_TURN = 20e-6
#: One turn of so many looks whether the world has come to its end.
_LOOKS = 16


class Killed(BaseException):
    """The process that runs this code is dead."""


class StuckError(AssertionError):
    """Somebody waits, and nothing will ever happen again."""


class ViolationError(AssertionError):
    """Something that must never be."""


@dataclass(order=True, slots=True)
class _Event:
    at: float
    number: int
    run: Callable[[], object] = field(compare=False)


class SimulatedThread:
    """A thread, as the world sees it."""

    __slots__ = ("_go", "deaf", "ident", "number", "process", "ticket", "waits", "woken")

    def __init__(self, process: Process, number: int) -> None:
        self.process = process
        self.number = number
        #: The system's number of it.
        self.ident = 0
        #: Counts its waits, so that an alarm of an earlier one is told from that of this one.
        self.ticket = 0
        self.waits = False
        self.woken = False
        #: Whether it is being unwound, with everything that it calls failing.
        self.deaf = False
        self._go = _thread.allocate_lock()
        self._go.acquire()

    def go(self) -> None:
        """Give it the turn."""
        self._go.release()

    def stand(self) -> None:
        """Wait for the turn."""
        self._go.acquire()


class Process:
    """A simulated process: its threads, its modules' variables, what it has open."""

    def __init__(self, world: World, name: str, machine: str, pid: int) -> None:
        self.world = world
        self.name = name
        self.machine = machine
        self.pid = pid
        self.dead = False
        self.asleep = False
        #: When it woke from its last sleep.
        self.woke = -1e9
        self.threads: set[SimulatedThread] = set()
        #: Values of the variables that each process has for itself, while others run.
        self.variables: list[object] = [make() for _, _, make in world.variables]
        self.descriptors: set[int] = set()
        self.on_death: list[Callable[[], None]] = []
        self.loops: list[Any] = []
        #: Threads whose turn came while it slept.
        self.backlog: list[SimulatedThread] = []

    def sleep(self, seconds: float) -> None:
        """Stop it where it is, and let it go on after a while."""
        if not self.dead:
            self.asleep = True
            self.world.tell(f"{self.name} falls asleep")
            self.world.after(seconds, self._wake)

    def _wake(self) -> None:
        if not self.dead:
            self.asleep = False
            self.woke = self.world.now
            self.world.tell(f"{self.name} wakes up")
            self.world.resume(self.backlog)
            self.backlog.clear()

    @property
    def kind(self) -> str:
        """What it is: the last word of its name, without its number."""
        words = [word.rstrip("0123456789") for word in self.name.split(".")]
        return [word for word in words if word][-1]

    def kill(self) -> None:
        """End it at once: nothing that it still does is seen by anybody."""
        if self.dead:
            return
        self.dead = True
        self.asleep = False
        if not self.world.over:
            self.world.tell(f"{self.name} is dead")
        for broken in self.on_death:
            broken()
        self.world.unwind(self)

    def __repr__(self) -> str:
        return f"<{self.name}, pid {self.pid}>"


#: Module and name of a variable that each process has for itself, and what makes its first value.
Variable = tuple[ModuleType, str, Callable[[], object]]

_here = threading.local()


def this_thread() -> SimulatedThread | None:
    """Give the simulated thread that runs this code; None in all others."""
    return getattr(_here, "thread", None)


@contextmanager
def quietly() -> Iterator[None]:
    """Let nobody hear that dead processes leave things open, and coroutines that nobody awaits."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook


@contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread, and those that it starts, on the core where it is.

    One that hands its turn on wakes another of the same core in two thirds of the time.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    # The 39th field, of which the second may hold spaces.
    state = Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()
    os.sched_setaffinity(0, {int(state[36])} & allowed or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class World:
    """The clock, the events, the processes, and whose turn it is.

    Parameters
    ----------
    seed
        Where all chance comes from.
    variables
        What of the modules each process has for itself.
    """

    def __init__(self, seed: int, variables: list[Variable]) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.now = 0.0
        self.variables = variables
        self.processes: list[Process] = []
        self.log: list[str] = []
        #: Whether it only ends, and nobody looks any more.
        self.over = False
        #: The thread whose turn it is; None: the test's own.
        self.thread: SimulatedThread | None = None
        #: How often of a thousand times a thread that could go on lets others go first.
        self.haste = 100
        self.turns = 0
        #: Connects a process to a port; None: there is no network.
        self.connect: Callable[..., Any] | None = None
        #: Called after each turn; a failure ends the world.
        self.on_turn: Callable[[], None] = lambda: None
        self._finished: Callable[[], bool] = lambda: False
        self._failure: BaseException | None = None
        self._events: list[_Event] = []
        self._number = 0
        self._ready: list[SimulatedThread] = []
        self._dying: list[SimulatedThread] = []
        self._active: Process | None = None
        self._main = _thread.allocate_lock()
        self._main.acquire()
        self._pids = 1000

    def tell(self, line: str) -> None:
        """Write into the story of this world."""
        self.log.append(f"{self.now:9.4f} {line}")

    def at(self, when: float, run: Callable[[], object]) -> None:
        """Let something happen later, in no thread of anybody's."""
        self._number += 1
        heapq.heappush(self._events, _Event(when, self._number, run))

    def after(self, seconds: float, run: Callable[[], object]) -> None:
        """Let something happen some time from now."""
        self.at(self.now + seconds, run)

    # Processes and threads

    def process(self, name: str, machine: str) -> Process:
        """Make a process, without a thread as yet."""
        self._pids += 1
        made = Process(self, name, machine, self._pids)
        self.processes.append(made)
        return made

    def start(self, process: Process, run: Callable[[], object]) -> SimulatedThread:
        """Start a thread of a process."""
        self._number += 1
        thread = SimulatedThread(process, self._number)
        process.threads.add(thread)

        def begin() -> None:
            thread.stand()
            # What an earlier thread of this number has left makes a difference.
            threading._active.pop(threading.get_ident(), None)  # type: ignore[attr-defined]
            _here.thread = thread
            thread.ident = threading.get_ident()
            if (trace := threading.gettrace()) is not None:
                sys.settrace(trace)
            if (profile := threading.getprofile()) is not None:
                sys.setprofile(profile)
            try:
                if not process.dead:
                    run()
            except Killed:
                pass
            except BaseException as error:
                self.tell(f"a thread of {process.name} ended by {error!r}")
                self.log += traceback.format_exc().splitlines()[-12:]
            finally:
                self._ended(thread)

        _thread.start_new_thread(begin, ())
        self._ready.append(thread)
        if process.dead:
            self.unwind(process)
        return thread

    def _ended(self, thread: SimulatedThread) -> None:
        process = thread.process
        process.threads.discard(thread)
        _here.thread = None
        if process.dead and not process.threads:
            self._forget(process)
        self._hand_on(self._next())

    def _forget(self, process: Process) -> None:
        """End coroutines that nobody will ever step again, while nothing that they do counts."""
        _here.thread = ghost = SimulatedThread(process, 0)
        ghost.deaf = True
        for loop in process.loops:
            loop.abandon()
        process.loops.clear()
        process.variables = []
        _here.thread = None

    def unwind(self, process: Process) -> None:
        """Have the threads of a dead process end before anything else happens."""
        for thread in sorted(process.threads, key=lambda each: each.number):
            thread.deaf = True
            if thread in self._ready:
                self._ready.remove(thread)
            if thread is not self.thread and thread not in self._dying:
                self._dying.append(thread)
            thread.waits = False

    def resume(self, threads: list[SimulatedThread]) -> None:
        """Let threads go on that were stopped."""
        self._ready += threads

    # Waiting

    def block(self, seconds: float | None = None) -> bool:
        """Let others go on until :meth:`wake`, or for some seconds; tell whether one woke it."""
        me = self._me()
        me.ticket += 1
        me.waits, me.woken = True, False
        if seconds is not None:
            ticket = me.ticket
            self.after(max(seconds, 0.0), lambda: self._alarm(me, ticket))
        self._switch(me)
        return me.woken

    def wake(self, thread: SimulatedThread) -> None:
        """Let a thread that waits go on."""
        if thread.waits and not thread.deaf:
            thread.waits, thread.woken = False, True
            self._ready.append(thread)

    def _alarm(self, thread: SimulatedThread, ticket: int) -> None:
        if thread.waits and thread.ticket == ticket and not thread.deaf:
            thread.waits = False
            self._ready.append(thread)

    def pause(self) -> None:
        """Let others go first, now and then."""
        me = this_thread()
        if me is None:
            return
        if me.deaf:
            raise Killed
        if self.chance.randrange(1000) < self.haste:
            self._ready.append(me)
            self._switch(me)

    @contextmanager
    def in_one_moment(self) -> Iterator[None]:
        """Give nobody else a turn meanwhile, so that all that is seen is of one moment."""
        haste, self.haste = self.haste, 0
        try:
            yield
        finally:
            self.haste = haste

    def check(self) -> None:
        """Raise in a process that is dead."""
        me = this_thread()
        if me is not None and me.deaf:
            raise Killed

    def _me(self) -> SimulatedThread:
        me = this_thread()
        assert me is not None, "only simulated threads wait"
        if me.deaf:
            raise Killed
        return me

    # Turns

    def _switch(self, me: SimulatedThread) -> None:
        following = self._next()
        if following is not me:
            self._hand_on(following)
            me.stand()
        if me.deaf:
            raise Killed

    def _hand_on(self, following: SimulatedThread | None) -> None:
        if following is None:
            self._main.release()
        else:
            following.go()

    def _next(self) -> SimulatedThread | None:
        # What happens by itself happens in no thread, though one has to run it.
        me, _here.thread, self.thread = this_thread(), None, None
        try:
            chosen = self._choose()
        except BaseException as error:
            self._failure = error
            chosen = None
        finally:
            _here.thread = me
        self.thread = chosen
        if chosen is not None and chosen.process is not self._active:
            self._enter(chosen.process)
        return chosen

    def _choose(self) -> SimulatedThread | None:
        if self._dying:
            return self._dying.pop()
        self.turns += 1
        self.now += self.chance.random() * _TURN
        self.on_turn()
        while not self._is_finished():
            events, ready = self._events, self._ready
            if events and (not ready or events[0].at <= self.now):
                event = heapq.heappop(events)
                self.now = max(self.now, event.at)
                event.run()
                if self._dying:
                    return self._dying.pop()
            elif not ready:
                raise StuckError("nothing will ever happen again\n" + self.stacks())
            else:
                at = self.chance.randrange(len(ready))
                thread = ready[at]
                ready[at] = ready[-1]
                ready.pop()
                if not thread.process.asleep:
                    return thread
                thread.process.backlog.append(thread)
        return None

    def _is_finished(self) -> bool:
        # Whether a job has come to its end takes longer to see than a turn takes.
        due = self.over or self.turns % _LOOKS == 0 or not (self._ready or self._events)
        return due and self._finished()

    def _enter(self, process: Process) -> None:
        """Give the modules the variables of another process."""
        before = self._active
        if before is not None and before.variables:
            before.variables = [vars(module)[name] for module, name, _ in self.variables]
        for (module, name, _), value in zip(self.variables, process.variables, strict=False):
            setattr(module, name, value)
        self._active = process

    def run(self, finished: Callable[[], bool]) -> None:
        """Let the world go on until something holds.

        Raises
        ------
        StuckError
            Nothing will ever happen again.
        """
        self._finished = finished
        self._hand_on_from_test(self._next())

    def end(self) -> None:
        """Kill all processes and wait until all of their threads have ended."""
        self.over = True
        for process in self.processes:
            process.kill()
        self._failure = None
        self._finished = lambda: not self._dying
        while any(process.threads for process in self.processes):
            self._hand_on_from_test(self._next())

    def _hand_on_from_test(self, following: SimulatedThread | None) -> None:
        if following is not None:
            following.go()
            self._main.acquire()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def stacks(self) -> str:
        """Tell where the threads stand: for those who debug a simulation."""
        frames, told = sys._current_frames(), []
        for process in self.processes:
            for thread in sorted(process.threads, key=lambda each: each.number):
                if (frame := frames.get(thread.ident)) is not None:
                    stack = traceback.extract_stack(frame)
                    lines = [f"{each.filename}:{each.lineno} {each.name}" for each in stack]
                    lines = [line for line in lines if "/tests/simulation/w" not in line]
                    told.append(f"{process.name}, {thread.number}:\n    " + "\n    ".join(lines))
            for loop in process.loops:
                told += [
                    f"{process.name}:\n    {_awaits(task)}" for task in asyncio.all_tasks(loop)
                ]
        return "\n".join(told)


def _awaits(task: asyncio.Task[Any]) -> str:
    """Tell where a task stands, from the outermost call in."""
    lines: list[str] = []
    step: Any = task.get_coro()
    while (frame := getattr(step, "cr_frame", None) or getattr(step, "gi_frame", None)) is not None:
        lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None)
    return "\n    ".join([*lines, repr(step)])
