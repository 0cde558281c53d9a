"""The life of a unit in its host: made, started once, at work, stopped once; or failed."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
import orjson

from headrace.connect.config import Config, Masking
from headrace.connect.handling.retrying import Retrying, is_retriable
from headrace.connect.levels import set_level
from headrace.connect.lifecycle import (
    Cause,
    Counted,
    Failed,
    Healthy,
    HostEvent,
    Started,
    Stopped,
    StopRaised,
    Unhealthy,
    WaitsFor,
)
from headrace.user_lines import line_of_stack, user_line
from headrace.watched import OnFailure, end_process, watched_thread

if TYPE_CHECKING:
    from headrace.connect.plugins import Connector, SinkTask, SourceTask


# What the config of a task asks of the data plane, as its host has read it.

Begin = Literal["first", "latest"] | int
"""Where a queue is begun: at its first message, after its latest, or at a time, ms since 1970."""


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the data plane has to know of a task, and nothing that is secret.

    The host says it, as it alone has the config with its values from outside.
    """

    #: Of a sink: topics, or a pattern of their names.
    topics: list[str] = []
    pattern: str = ""
    #: Where dead letters of a sink go; empty: nowhere.
    letters: str = ""
    #: Queues of topics that the task makes.
    queues: int = 4
    #: Where a sink begins in queues of which no offset was ever committed.
    begin: Begin = "first"
    #: Whether a sink takes columns: many records of those take little memory.
    columns: bool = False

    @classmethod
    def of_source(cls, config: Config) -> Self:
        """Read a source task's config."""
        return cls(queues=config["topic.creation.default.partitions"])

    @classmethod
    def of_sink(cls, config: Config, *, columns: bool = False) -> Self:
        """Read a sink task's config."""
        pattern = config["topics.regex"]
        return cls(
            topics=config["topics"],
            pattern="" if pattern is None else pattern.pattern,
            letters=config["errors.deadletterqueue.topic.name"].strip(),
            queues=config["errors.deadletterqueue.topic.queues"],
            begin=_begin(config["consume.from.where"]),
            columns=columns,
        )


def _begin(text: str) -> Begin:
    """Read where to begin.

    >>> _begin("Earliest"), _begin("latest"), _begin("2026-05-01T12:00:00Z")
    ('first', 'latest', 1777636800000)
    >>> _begin("2026-05-01T12:00:00.0009Z")
    1777636800000
    """
    word = text.strip().lower()
    if word == "latest":
        return "latest"
    if word in {"first", "earliest"}:
        return "first"
    from headrace.client.pulling import whole_milliseconds

    return whole_milliseconds(datetime.fromisoformat(text.strip()))


# The health probe of a unit: asked every now and then, in a thread that nobody waits for.


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
    """Say what a unit waits for whose call is tried again.

    >>> outage_of(ConnectionError("nobody answers"), "flush()")
    'what it reaches, in flush(): nobody answers'
    """
    return f"what it reaches, in {where}: {first_line(mask(str(error)))}"


class HostControl:
    r"""A host's end.

    Parameters
    ----------
    connected
        The socket to the worker.
    alone
        Whether the process ends with it.

    Examples
    --------
    >>> from headrace.connect.lifecycle import ReconfigureAsked
    >>> worker, host = socket.socketpair()
    >>> with worker, host:
    ...     HostControl(host).say(ReconfigureAsked())
    ...     worker.recv(100)
    b'{"say":"ReconfigureAsked"}\n'
    """

    def __init__(self, connected: socket.socket, *, alone: bool = True) -> None:
        self.alone = alone
        self._socket = connected
        self._lines = connected.makefile("rb")
        self._sending = threading.Lock()

    def say(self, event: HostEvent) -> None:
        """Tell the worker of an event."""
        self.tell(type(event).__name__, **asdict(event))

    def tell(self, word: str, **more: Any) -> None:
        """Tell the worker something; one that is gone hears nothing."""
        line = orjson.dumps({"say": word, **more}) + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(line)

    def ask(self) -> dict[str, Any]:
        """Wait for the next message of the worker; end where there is no worker any more.

        Raises
        ------
        EOFError
            Nothing more comes, and others share the process.
        """
        try:
            line = self._lines.readline()
        except OSError:
            line = b""
        if not line:
            if not self.alone:
                raise EOFError
            os._exit(1)
        message: dict[str, Any] = msgspec.json.decode(line)
        return message

    def follow(self, hear: Mapping[str, Callable[..., object]], on_failure: OnFailure) -> None:
        """Go on hearing in a thread of its own; each word has its answer, which must not wait.

        The end of what is heard is a ``stop``.
        """

        def listen() -> None:
            with contextlib.suppress(EOFError):
                while True:
                    message = self.ask()
                    hear[message.pop("do")](**message)
            self._lines.close()
            hear["stop"]()

        watched_thread(
            listen,
            name="headrace-control",
            on_failure=end_process if self.alone else on_failure,
        ).start()

    def close(self) -> None:
        """Say and hear nothing more."""
        with contextlib.suppress(OSError):
            # Whoever hears in another thread is woken by that, and not by the end of the descriptor.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


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
    terms: Terms | None = None
    #: What the worker may ask of it besides, each with its answer, which must not wait.
    words: Mapping[str, Callable[..., object]] = {}

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
        """Say what is called while it is."""
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
        self, control: HostControl, who: str, probe: float = 0.0, masking: Masking | None = None
    ) -> None:
        self.control = control
        self._who = who
        self._probe = probe
        self._failing = threading.Lock()
        self._main = threading.get_ident()
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
        #: What a call waits for that is tried again, and what the probe says that it waits for.
        self._waits = {"call": "", "probe": ""}
        self._telling = threading.Lock()

    def live(self, unit: RunningUnit) -> None:
        """Make, start, work, stop."""
        self._unit = unit
        words: dict[str, Callable[..., object]] = {
            "stop": self._stop,
            "pause": self._pause,
            "resume": self._resume,
            "where": self._where,
            "level": set_level,
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
                terms = {} if unit.terms is None else msgspec.to_builtins(unit.terms)
                self.control.say(Started(address, terms))
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
                self.control.say(StopRaised(cause))
                self.failed = True
            return
        if not self.failed:
            self._tell_counts()
            self.control.say(Stopped())

    def waits(self, error: Exception | None) -> None:
        """Tell what a call waits for that is tried again: its error; ``None``: it has come back."""
        doing = "" if self._unit is None else self._unit.doing
        self._wait_for("call", "" if error is None else outage_of(error, doing, self.masking))

    def _wait_for(self, who: str, what: str) -> None:
        with self._telling:
            before = self._waits["call"] or self._waits["probe"]
            self._waits[who] = what
            after = self._waits["call"] or self._waits["probe"]
            if after != before:
                self.control.say(WaitsFor(after))

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
        self.control.say(Failed(cause))
        if self.control.alone:
            # The rest must not take for ever, whatever thread hangs in it.
            timer = threading.Timer(_GRACE_OF_FAILED, os._exit, [1])
            timer.daemon = True
            timer.start()
        self._stop()

    def _stop(self) -> None:
        self.stopping.set()
        self._wake()

    def _pause(self) -> None:
        self.paused.set()
        self._wake()

    def _resume(self) -> None:
        self.paused.clear()
        self._wake()

    def _wake(self) -> None:
        if self._unit is not None:
            self._unit.wake()

    def _where(self) -> None:
        """Say what the main thread does: the line of the user's code that hangs, if one does."""
        frame = sys._current_frames().get(self._main)  # noqa: SLF001 - there is no other way
        doing = self._unit.doing if self._unit is not None else ""
        self.control.tell("where", doing=doing, line=line_of_stack(frame) or "")

    def _count(self) -> None:
        self._tell_counts()
        while not self.stopping.wait(_COUNTING):
            self._tell_counts()

    def _tell_counts(self) -> None:
        """Tell what has failed, where that has changed."""
        with self._counting:
            if self._unit is None or self._counts is None:
                return
            counts = self._unit.counted()
            if counts != self._counts:
                self._counts = counts
                self.control.say(Counted(counts))

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
            self._wait_for("probe", reason if probe.passes else "")
            if reason and not probe.passes:
                self.control.say(Unhealthy(reason))
            else:
                self.control.say(Healthy())
