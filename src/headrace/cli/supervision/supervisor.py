"""Keeps a job running: starts its driver, and another one when that dies."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from headrace.cli._terminal import say
from headrace.cli.supervision.channel import Word
from headrace.cli.supervision.children import (
    Child,
    adopting_orphans,
    children_of,
    is_stopped,
    kill_left_behind,
)
from headrace.cli.supervision.endings import Ending, Restarts, ending, told

__all__ = ["Supervisor"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: A standby is started when its driver has committed, or after so long without input, s.
_STANDBY_AFTER = 15.0


class Supervisor:
    """Runs a job in a child process.

    A driver that is killed is replaced at once: by its standby, where there is one.  One that
    hangs is killed.

    Parameters
    ----------
    command
        What runs the job.
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
        """Run the job to its end; give the exit status."""
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
            # It had not come so far yet that it could end in order.
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
        if how is Ending.DONE or (how is Ending.FAILED and _is_for_good(child)):
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
    """Tell whether a driver that failed proves that the job cannot run."""
    if child.again and Word.HINDERED in child.said:
        # Whatever ended the one before it, a broker that is away for example, lasts.
        return False
    # A standby may fail to take over.
    return Word.GO not in child.told or Word.DRIVING in child.said


def _heard(number: int, _: FrameType | None) -> None:
    """Do nothing: the number comes through the socket."""
