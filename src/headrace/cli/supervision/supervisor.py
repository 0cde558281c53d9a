"""Keeps a job running: starts its driver, and another one when that dies."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum, auto
from pathlib import Path
from types import FrameType

from headrace.backoff import Backoff
from headrace.cli._terminal import say
from headrace.cli.supervision.channel import Word

# Measuring how long a process has given no sign of life: no processes and no clock here.

#: How many looks fit into the limit; the time between two of them counts as at most two.
_LOOKS = 20
_LONGEST_PAUSE = 5.0


class Silence:
    """Measures the silence of a process that should say something every second.

    Only time in which its watcher looked counts: a machine that slept, or a watcher that was
    stopped itself, says nothing about the process.  Nothing counts before its first word, as
    nobody knows how long a program takes until it can speak.

    Parameters
    ----------
    limit
        Seconds of silence after which it is taken to hang.

    Examples
    --------
    >>> silence = Silence(10.0)
    >>> silence.pause
    0.5
    >>> silence.heard(now=100.0)
    >>> [silence.is_over(now=100.0 + second) for second in (0.5, 60.0)]
    [False, False]
    >>> any(silence.is_over(now=160.0 + look / 2) for look in range(30))
    True
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._looked: float | None = None
        self._lasted = 0.0

    @property
    def pause(self) -> float:
        """Seconds from one look to the next."""
        return min(self.limit / _LOOKS, _LONGEST_PAUSE)

    def heard(self, now: float) -> None:
        """Take note of a sign of life."""
        self._looked, self._lasted = now, 0.0

    def is_over(self, now: float) -> bool:
        """Look at the clock; return whether the silence has lasted longer than the limit."""
        if self._looked is None:
            return False
        self._lasted += min(now - self._looked, 2 * self.pause)
        self._looked = now
        return self._lasted > self.limit


# The processes of a supervisor: drivers, and what they leave behind when they are killed.

_SET_CHILD_SUBREAPER = 36
_PATIENCE = 5.0
#: What a process may take to show where its threads are, s.
_LAST_WORDS = 0.5


class Child:
    """A driver or a standby, in a process group of its own.

    Ctrl-C in a terminal goes to the group of the supervisor, which passes it on.

    Parameters
    ----------
    command
        The command that runs the job; ``--channel`` is added to it.
    environment
        Variables that it has besides those of this process.
    again
        Whether it goes on with what another one began.
    limit
        Seconds of silence after which it is taken to hang.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        again: bool = False,
        limit: float = 60.0,
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [*command, *(["--again"] if again else []), "--channel", str(number)],
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
                process_group=0,
                env=os.environ | environment,
            )
        self.again = again
        #: Readable when there is something to hear.
        self.socket = ours
        #: What it has said.
        self.said: set[Word] = set()
        #: What it was told.
        self.told: set[Word] = set()
        self.silence = Silence(limit)
        self._rest = b""

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def hear(self) -> list[Word] | None:
        """Return what it has said since the last call; None if it has ended."""
        try:
            received = self.socket.recv(4096)
        except OSError:
            received = b""
        if not received:
            return None
        *lines, self._rest = (self._rest + received).split(b"\n")
        words = [Word(line.decode()) for line in lines]
        self.said.update(words)
        self.silence.heard(time.monotonic())
        return words

    def tell(self, word: Word) -> None:
        """Send it a word, unless it is gone."""
        self.told.add(word)
        with contextlib.suppress(OSError):
            self.socket.sendall(f"{word}\n".encode())

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def shoot(self) -> None:
        """Kill it, after it has shown where its threads are, if it still can."""
        self.silence.heard(time.monotonic())
        self.signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS)
        self.signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end, and return its return code."""
        self.socket.close()
        return self._process.wait()


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Become the parent of all descendants that lose theirs, where the system can do that."""
    adopt = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: None
    adopt(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        adopt(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def is_stopped(pid: int) -> bool:
    """Return whether a process stands still (SIGSTOP); False where there is no ``/proc``.

    >>> is_stopped(os.getpid())
    False
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def kill_left_behind(group: int, known: Collection[int]) -> int:
    """Kill what a driver that died has left, Java and Python workers; return their number.

    They would end by themselves, some seconds later, and hold the local state until then.

    Parameters
    ----------
    group
        The driver's process group.
    known
        Processes that are not the driver's.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    killed: set[int] = set()
    deadline = time.monotonic() + _PATIENCE
    # Killed processes leave orphans in their turn.
    while orphans := children_of(os.getpid()) - set(known):
        if time.monotonic() > deadline:
            break
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)
        killed |= orphans
    return len(killed)


def children_of(parent: int) -> set[int]:
    """Find the children of a process; none where there is no ``/proc``.

    >>> children_of(os.getpid()) >= set()
    True
    """
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.add(int(stat.parent.name))
    return found


# What the end of a driver means, and how often it is started again: no processes here.

_BACKOFF = Backoff(1.0, 30.0)


class ProcessEnd(Enum):
    """The reasons for which a process ends."""

    DONE = auto()
    #: It said why, and would say so again.
    FAILED = auto()
    #: It was killed, or fell over: another one goes on.
    CRASHED = auto()


def ending(status: int) -> ProcessEnd:
    """Return what a return code means; those below zero are signals.

    >>> [ending(status).name for status in (0, 1, 2, -9)]
    ['DONE', 'FAILED', 'FAILED', 'CRASHED']
    """
    if status == 0:
        return ProcessEnd.DONE
    return ProcessEnd.CRASHED if status < 0 else ProcessEnd.FAILED


def told(status: int) -> str:
    """Return how a process ended.

    >>> told(-9), told(1)
    ('was killed by SIGKILL', 'ended with status 1')
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


class Restarts:
    """Counts restarts that were in vain, and says how long to wait before the next one.

    The first one is at once: most crashes come from a machine that was short of memory, or from a
    person who wanted to see what happens.

    Parameters
    ----------
    most
        Restarts in a row without progress; None: no bound.

    Examples
    --------
    >>> restarts = Restarts(most=3)
    >>> restarts.pause(), restarts.pause(), restarts.pause(), restarts.pause()
    (0.0, 1.0, 2.0, None)
    >>> restarts.progressed()
    >>> restarts.pause()
    0.0
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.in_a_row = 0

    def pause(self) -> float | None:
        """Count a restart and return the seconds to wait before it; None: no more of them."""
        self.in_a_row += 1
        if self.most is not None and self.in_a_row > self.most:
            return None
        return 0.0 if self.in_a_row == 1 else _BACKOFF.after(self.in_a_row - 1)

    def progressed(self) -> None:
        """Forget the restarts, as the last one has helped."""
        self.in_a_row = 0


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: A standby is started when its driver has committed, or after this time without input, s.
_STANDBY_AFTER = 15.0


class Supervisor:
    """Runs a job in a child process.

    A driver that is killed is replaced at once, by its standby if there is one.  A driver that
    hangs is killed.

    Parameters
    ----------
    command
        The command that runs the job.
    data_dir
        Folder of the embedded broker, where the job needs one.
    environment
        Variables that it has besides those of this process.
    standby
        Whether a second driver is kept warm.
    most_restarts
        Restarts in a row, without a commit in between, before it gives up.
    driver_timeout
        Seconds without a sign of life after which a driver is taken to hang.
    """

    def __init__(
        self,
        command: Sequence[str],
        data_dir: Path,
        environment: Mapping[str, str] | None = None,
        *,
        standby: bool = False,
        most_restarts: int = 5,
        driver_timeout: float = 60.0,
    ) -> None:
        self._command = list(command)
        self._data_dir = data_dir
        self._environment = environment or {}
        self._standby = standby
        self._driver_timeout = driver_timeout
        self._children: list[Child] = []
        self._driver: Child | None = None
        self._restarts = Restarts(most_restarts)
        self._standby_restarts = Restarts(None)
        self._start_at: float | None = time.monotonic()
        self._began = self._stopped = False
        self._status: int | None = None
        self._opened = ExitStack()
        self._others: set[int] = set()

    def run(self) -> int:
        """Run the job to its end, and return the exit status."""
        with (
            self._opened,
            adopting_orphans(),
            selectors.DefaultSelector() as selector,
            self._signals(selector),
        ):
            self._others = children_of(os.getpid())
            while self._status is None or self._children:
                self._start_what_is_due(selector)
                for key, _ in selector.select(self._patience()):
                    if key.data is None:
                        self._pass_on(key.fd)
                    else:
                        self._hear(key.data, selector)
                # After what was heard: while this process was stopped, words may have waited.
                self._end_what_hangs()
        return self._status

    def _patience(self) -> float | None:
        pauses = [child.silence.pause for child in self._children]
        if self._start_at is not None:
            pauses.append(max(0.0, self._start_at - time.monotonic()))
        return min(pauses, default=None)

    def _end_what_hangs(self) -> None:
        for child in self._children:
            if child.silence.is_over(time.monotonic()):
                role = "Driver" if child is self._driver else "Standby"
                why = ", as it was stopped (SIGSTOP)" if is_stopped(child.pid) else ""
                limit = f"{self._driver_timeout:g} s (setting driver_timeout){why}"
                say(f"{role} {child.pid} gave no sign of life for {limit}: killing it.")
                child.shoot()

    def _start_what_is_due(self, selector: selectors.BaseSelector) -> None:
        if self._start_at is None or time.monotonic() < self._start_at:
            return
        self._start_at = None
        if self._status is None:
            child = Child(
                self._command, self._environment, again=self._began, limit=self._driver_timeout
            )
            self._began = True
            self._children.append(child)
            selector.register(child.socket, selectors.EVENT_READ, child)
            if self._driver is None:
                self._make_driver(child)

    def _make_driver(self, child: Child) -> None:
        """Let a process drive; with ``standby``, as soon as no other machine does."""
        if self._standby:
            child.tell(Word.ALONE)
        else:
            self._driver = child

    def _hear(self, child: Child, selector: selectors.BaseSelector) -> None:
        words = child.hear()
        if words is None:
            selector.unregister(child.socket)
            self._children.remove(child)
            self._ended(child, child.wait())
            return
        for word in words:
            self._said(child, word)

    def _said(self, child: Child, word: Word) -> None:
        if word is Word.BROKER:
            self._start_broker()
            child.tell(Word.BROKER)
        elif word is Word.READY:
            self._standby_restarts.progressed()
        elif word is Word.DRIVING:
            self._driver = child
            self._plan_standby(_STANDBY_AFTER)
        elif word is Word.COMMITTED:
            self._restarts.progressed()
            self._plan_standby(0.0)

    def _start_broker(self) -> None:
        from headrace.embedded import embedded_broker

        before = children_of(os.getpid())
        self._opened.enter_context(embedded_broker(self._data_dir))
        self._others |= children_of(os.getpid()) - before

    def _plan_standby(self, pause: float) -> None:
        if self._standby and len(self._children) < 2:
            self._start_at = time.monotonic() + pause

    def _ended(self, child: Child, status: int) -> None:
        drove = child is self._driver
        if drove:
            self._driver = None
        if self._stopped and status == -signal.SIGTERM:
            # It had not yet come far enough to end in order.
            status = 0
        if self._status is not None or self._stopped:
            if drove or not self._children:
                self._finish(status if drove else 0)
        elif drove and self._standby and Word.FENCED in child.said:
            say(f"Driver {child.pid} ended: another one, elsewhere, runs the job now.")
            for other in self._children:
                other.tell(Word.ALONE)
            self._plan_standby(0.0)
        elif drove or not self._children:
            self._replace(child, status)
        else:
            self._replace_standby(child, status)
        # However it ended, also while its Java began; before another one starts.
        self._clear_up(child)

    def _replace(self, child: Child, status: int) -> None:
        """Let another driver go on, after the end of the one that ran the job or was to."""
        how = ending(status)
        if how is ProcessEnd.DONE or (how is ProcessEnd.FAILED and _is_for_good(child)):
            self._finish(status)
            return
        pause = self._restarts.pause()
        what = f"Driver {child.pid} {told(status)}"
        if pause is not None and self._children:
            # Its epoch keeps what is left of the other out; stores wait until that is gone.
            say(f"{what}: its standby takes over.")
            self._children[0].tell(Word.GO)
            return
        if pause is None:
            say(f"{what}, after {self._restarts.most} restarts without a commit: giving up.")
            self._finish(status)
        else:
            wait = f" in {pause:g} s" if pause else ""
            say(f"{what}: starting another one{wait}.")
            self._start_at = time.monotonic() + pause

    def _replace_standby(self, child: Child, status: int) -> None:
        pause = self._standby_restarts.pause() or 0.0
        wait = f" in {pause:g} s" if pause else ""
        say(f"Standby {child.pid} {told(status)}: starting another one{wait}.")
        self._start_at = time.monotonic() + pause

    def _clear_up(self, child: Child) -> None:
        kill_left_behind(child.pid, self._others | {other.pid for other in self._children})

    def _finish(self, status: int) -> None:
        """Take the status of the driver, and end when all others have ended."""
        if self._status is None:
            self._status = status if status >= 0 else 128 - status
            self._stop_children()

    def _stop_children(self) -> None:
        for child in self._children:
            child.signal(signal.SIGTERM)

    @contextlib.contextmanager
    def _signals(self, selector: selectors.BaseSelector) -> Iterator[None]:
        """Hear of Ctrl-C and SIGTERM through the selector."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.setblocking(False)
            selector.register(ours, selectors.EVENT_READ)
            wakeup = signal.set_wakeup_fd(theirs.fileno())
            before = {number: signal.signal(number, _heard) for number in _SIGNALS}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(wakeup)

    def _pass_on(self, number: int) -> None:
        """Pass a signal on: the driver stops in order."""
        os.read(number, 64)
        self._stopped = True
        if self._children:
            self._stop_children()
        else:
            self._finish(0)


def _is_for_good(child: Child) -> bool:
    """Return whether a driver that failed proves that the job cannot run."""
    if child.again and Word.HINDERED in child.said:
        # Whatever ended the driver before, such as a broker that is away, lasts.
        return False
    # A standby may fail to take over.
    return Word.GO not in child.told or Word.DRIVING in child.said


def _heard(number: int, _: FrameType | None) -> None:
    """Do nothing: the number comes through the socket."""
