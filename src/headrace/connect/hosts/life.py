"""The life of a unit in its host: made, started once, at work, stopped once; or failed."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.connect.channel import ChildEnd, Level, Pause, Stop
from headrace.connect.config import Config, Masking
from headrace.connect.handling.retrying import Retrying, is_retriable
from headrace.connect.levels import set_level
from headrace.connect.lifecycle import (
    Cause,
    Counted,
    Failed,
    Healthy,
    Started,
    Stopped,
    StopRaised,
    Terms,
    Unhealthy,
    WaitsFor,
)
from headrace.user_lines import user_line
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.connect.plugins import Connector, SinkTask, SourceTask


# Why a unit failed, in one line: what, where in the user's own code, why.

_LONGEST = 500


def first_line(text: str) -> str:
    r"""Return the first line of a text, cut where it is very long.

    >>> first_line("no\nyes")
    'no'
    """
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def cause_of(error: BaseException, who: str, where: str, mask: Callable[[str], str] = str) -> Cause:
    """Describe an error of plugin code.

    Parameters
    ----------
    error
        What was raised.
    who
        The unit: ``task 0 of connector 'orders'``.
    where
        What was called: ``poll()``.
    mask
        Hides secrets: before anything is cut, as a part of one tells something, too.

    Examples
    --------
    >>> cause_of(ValueError("no such table"), "task 0 of connector 'a'", "start()").summary
    "task 0 of connector 'a' failed in start(): ValueError: no such table"
    """
    why = first_line(mask("".join(traceback.format_exception_only(error))))
    if (text := str(error)) and type(error).__module__ != "builtins":
        # The module of an error says less than its name and its text.
        why = f"{type(error).__name__}: {first_line(mask(text))}"
    # What could not be imported is told by an error of ours, caused by the user's own.
    line = user_line(error) or (error.__cause__ and user_line(error.__cause__))
    at = f", at {line}" if line else ""
    summary = f"{who} failed in {where}: {why}{at}"
    return Cause(summary, mask("".join(traceback.format_exception(error))))


def outage_of(error: BaseException, where: str, mask: Callable[[str], str] = str) -> str:
    """Return what a unit waits for whose call is tried again.

    >>> outage_of(ConnectionError("nobody answers"), "flush()")
    'what it reaches, in flush(): nobody answers'
    """
    return f"what it reaches, in {where}: {first_line(mask(str(error)))}"


# The health probe of a unit: asked every now and then, in a thread that nobody waits for.


class Probe:
    """Asks ``healthy()``.

    Parameters
    ----------
    who
        Names the unit.
    healthy
        The plugin's probe.
    patience
        Seconds that it may take to answer.
    mask
        Hides secrets in what it raises.

    Examples
    --------
    >>> Probe("task 0 of connector 'a'", lambda: False, patience=5.0).ask()
    'healthy() said no'
    >>> Probe("task 0 of connector 'a'", lambda: True, patience=5.0).ask()
    ''
    """

    def __init__(
        self,
        who: str,
        healthy: Callable[[], bool],
        patience: float,
        mask: Callable[[str], str] = str,
    ) -> None:
        self._who = who
        self._mask = mask
        self._healthy = healthy
        self._patience = patience
        self._answered = threading.Event()
        self._asking = False
        self._reason = ""
        #: Whether what it said last passes by itself: the unit waits for something outside.
        self.passes = False

    def ask(self) -> str:
        """Return the reason why the unit is not healthy; an empty text: it is."""
        if not self._asking:
            self._asking = True
            self._answered.clear()
            threading.Thread(target=self._call, name="headrace-probe-call", daemon=True).start()
        # One that hangs is not asked twice: its one answer is awaited again.
        if not self._answered.wait(self._patience):
            self.passes = False
            return f"healthy() has not answered for {self._patience:g} s"
        self._asking = False
        return self._reason

    def _call(self) -> None:
        passes = False
        try:
            self._reason = "" if self._healthy() else "healthy() said no"
        except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
            passes = is_retriable(error)
            self._reason = (
                outage_of(error, "healthy()", self._mask)
                if passes
                else cause_of(error, self._who, "healthy()", self._mask).summary
            )
        self.passes = passes
        self._answered.set()


#: Seconds that a unit has for ``stop()`` when it has failed; nobody asks it to stop then.
_GRACE_OF_FAILED = 5.0
#: Seconds between two looks at what a task has counted.
_COUNTING = 1.0


class RunningUnit(ABC):
    """A connector or a task; every method but :meth:`wake` is called by one thread, its main one."""

    #: What is being called now, for the cause.
    doing = "__init__()"
    #: What a task's config asks of the data plane; known once it is made.
    terms = Terms()
    #: What the worker may ask of it besides, each with its answer, which must not wait.
    words: Mapping[type, Callable[[Any], object]] = {}

    @abstractmethod
    def make(self) -> None:
        """Import the plugin and make the instance with its context."""

    def await_start(self) -> bool:
        """Wait until the plugin may start; false: it is to stop, and has never started."""
        return True

    @property
    @abstractmethod
    def instance(self) -> Connector | SourceTask | SinkTask:
        """The plugin's instance."""

    @abstractmethod
    def make_instance(self) -> None:
        """Make the instance with its context."""

    def start_instance(self, config: Config, retrying: Retrying) -> None:
        """Call the instance's ``start``; where it waits for something outside, a new one's again."""
        tries = itertools.count()

        def start() -> None:
            if next(tries):
                # What a start that failed has left is nobody's.
                with contextlib.suppress(Exception):
                    self.instance.stop()
                self.make_instance()
            self.instance.start(config)

        retrying.call(start)

    @abstractmethod
    def start(self) -> str:
        """Call the plugin's ``start``; give the address of the data channel, if there is one."""

    @abstractmethod
    def work(self) -> None:
        """Do what there is to do until the unit is to stop."""

    @abstractmethod
    def stop(self) -> None:
        """Call the plugin's ``stop``."""

    @abstractmethod
    def wake(self) -> None:
        """Let :meth:`work` look up: something has changed."""

    def healthy(self) -> bool:
        """Ask the plugin's probe."""
        return self.instance.healthy()

    def counted(self) -> Mapping[str, int]:
        """Count what failed, by Kafka Connect's names; nothing where no records pass."""
        return {}

    @contextlib.contextmanager
    def in_call(self, name: str) -> Iterator[None]:
        """Name what is called while it is."""
        before, self.doing = self.doing, name
        yield
        self.doing = before


class Life:
    """Takes a unit through its life, and tells the worker of it.

    Parameters
    ----------
    control
        The channel to the worker.
    who
        Names the unit in causes.
    probe
        Seconds between two health probes; 0: none.
    masking
        Hides the secrets of the unit's config, once it is read.
    """

    def __init__(
        self, control: ChildEnd, who: str, probe: float = 0.0, masking: Masking | None = None
    ) -> None:
        self.control = control
        self._who = who
        self._probe = probe
        self._failing = threading.Lock()
        self._unit: RunningUnit | None = None
        self._counting = threading.Lock()
        #: What was told of the unit's counts, once it is made.
        self._counts: Mapping[str, int] | None = None
        #: Set when the unit is to stop.
        self.stopping = threading.Event()
        #: Set while the unit is paused.
        self.paused = threading.Event()
        self.masking = Masking() if masking is None else masking
        #: Whether the worker has been told of a failure.
        self.failed = False
        #: What a call waits for that is tried again, what the probe says that it waits for, and
        #: what the task itself has paused.
        self._waits = {"call": "", "probe": "", "pause": ""}
        self._telling = threading.Lock()

    def live(self, unit: RunningUnit) -> None:
        """Make, start, work, stop."""
        self._unit = unit
        words: dict[type, Callable[[Any], object]] = {
            Stop: lambda _: self._stop(),
            Pause: self._pause,
            Level: lambda told: set_level(told.logger, told.level),
            **unit.words,
        }
        self.control.follow(words, self.break_off)
        if self._make(unit):
            self._run(unit)
            self._end(unit)

    def _make(self, unit: RunningUnit) -> bool:
        try:
            unit.make()
        except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
            self._fail(error, unit.doing)
            return False
        self._counts = {}
        return True

    def _run(self, unit: RunningUnit) -> None:
        try:
            if not unit.await_start():
                return
            with unit.in_call("start()"):
                address = unit.start()
            if not self.failed:
                self.control.tell(Started(address, unit.terms))
                self._watch_health(unit)
                if unit.counted():
                    name = "headrace-counts"
                    watched_thread(self._count, name=name, on_failure=self.break_off).start()
                unit.work()
        except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
            if self.stopping.is_set() and getattr(error, "retriable", False):
                # It would have been tried again, but for the request to stop.
                traceback.print_exc()
            else:
                self._fail(error, unit.doing)

    def _end(self, unit: RunningUnit) -> None:
        self.stopping.set()
        try:
            with unit.in_call("stop()"):
                unit.stop()
        except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
            traceback.print_exc()
            if not self.failed:
                cause = cause_of(error, self._who, unit.doing, self.masking)
                self.control.tell(StopRaised(cause))
                self.failed = True
            return
        if not self.failed:
            self._tell_counts()
            self.control.tell(Stopped())

    def waits(self, error: Exception | None) -> None:
        """Take note of what a call waits for that is tried again: its error; ``None``: nothing."""
        doing = "" if self._unit is None else self._unit.doing
        self.wait_for("call", "" if error is None else outage_of(error, doing, self.masking))

    def wait_for(self, who: str, what: str) -> None:
        """Tell the worker what the unit waits for, as one of those that know says."""
        with self._telling:
            before = next(filter(None, self._waits.values()), "")
            self._waits[who] = what
            after = next(filter(None, self._waits.values()), "")
            if after != before:
                self.control.tell(WaitsFor(after))

    def fail(self, reason: str) -> None:
        """Put the unit into ERROR: ``context.fail(reason)``, from any thread."""
        told = self.masking(f"{self._who} says that it failed: {reason}")
        self._tell_failed(Cause(told))

    def break_off(self, error: BaseException) -> None:
        """Fail, as a thread has ended by an error without which the unit cannot live."""
        self._fail(error, "a thread of its host")

    def _fail(self, error: BaseException, doing: str) -> None:
        traceback.print_exc()
        self._tell_failed(cause_of(error, self._who, doing, self.masking))

    def _tell_failed(self, cause: Cause) -> None:
        with self._failing:
            if self.failed:
                return
            self.failed = True
        self._tell_counts()
        self.control.tell(Failed(cause))
        if self.control.alone:
            # The rest must not take for ever, whatever thread hangs in it.
            timer = threading.Timer(_GRACE_OF_FAILED, os._exit, [1])
            timer.daemon = True
            timer.start()
        self._stop()

    def _stop(self) -> None:
        self.stopping.set()
        self._wake()

    def _pause(self, told: Pause) -> None:
        (self.paused.set if told.paused else self.paused.clear)()
        self._wake()

    def _wake(self) -> None:
        if self._unit is not None:
            self._unit.wake()

    def _count(self) -> None:
        self._tell_counts()
        while not self.stopping.wait(_COUNTING):
            self._tell_counts()

    def _tell_counts(self) -> None:
        """Send the worker what has failed, where that has changed."""
        with self._counting:
            if self._unit is None or self._counts is None:
                return
            counts = self._unit.counted()
            if counts != self._counts:
                self._counts = counts
                self.control.tell(Counted(counts))

    def _watch_health(self, unit: RunningUnit) -> None:
        if self._probe:
            watched_thread(
                partial(self._look, unit), name="headrace-probe", on_failure=self.break_off
            ).start()

    def _look(self, unit: RunningUnit) -> None:
        probe = Probe(self._who, unit.healthy, self._probe, self.masking)
        while not self.stopping.wait(self._probe):
            if self._waits["call"]:
                # Why is known, and its connection is being made.
                continue
            reason = probe.ask()
            self.wait_for("probe", reason if probe.passes else "")
            if reason and not probe.passes:
                self.control.tell(Unhealthy(reason))
            else:
                self.control.tell(Healthy())
