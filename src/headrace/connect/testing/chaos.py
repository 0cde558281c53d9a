"""Connectors that misbehave on demand, in any callback: for tests of the runtime and of clients.

Each callback has a key: ``chaos.start``, ``chaos.poll`` and so on of a task, and
``chaos.connector.start`` of a connector; ``chaos.run`` stands for ``poll`` or ``put``.  It says
what is to happen there, and from which call on where that is not the first: ``hang``,
``raise: no such table``, ``slow: 0.5``, ``leak: 50 @ 3``.  Several, one after the other, are
separated by ``;``.

===============  ====================================================================
``hang``         sleeps for ever
``hang-hard``    the same, deaf to SIGTERM, SIGINT and SIGHUP
``frail``        falls over from now on when it is asked where its threads are
``busy``         computes for ever, and lets no other thread of its process compute
``raise``        raises `ChaosError` with the text
``slow``         sleeps for so many seconds
``leak``         takes so many megabytes with each call, and keeps them
``burst``        takes so many megabytes at once
``fork``         starts a process that sleeps for ever; with ``session`` in a session of its
                 own, with ``daemon`` besides as nobody's child, with ``clean`` besides
                 without any environment
``exit``         ends the process at once, with this status
``segfault``     ends it as broken C code does
``fail``         calls ``context.fail`` with the text
``reconfigure``  calls ``context.request_task_reconfiguration``
===============  ====================================================================
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from headrace.connect.config import Config, ConfigDeclaration, ConfigProblem, declare, key
from headrace.connect.plugins import SinkConnector, SinkTask, SourceConnector, SourceTask
from headrace.connect.records import Position, Queue, SinkRecord, SourceRecord
from headrace.connect.transforms.base import Record, Transform

CONNECTOR_CALLS = ("start", "task_configs", "alter_offsets", "stop", "healthy")
SOURCE_CALLS = ("start", "run", "poll", "commit", "stop", "healthy", "validate")
SINK_CALLS = ("start", "run", "open", "put", "flush", "close", "stop", "healthy", "validate")

_kept: list[bytearray] = []


class ChaosError(Exception):
    """What a callback raises that is told to."""


def _hang(text: str) -> None:
    del text
    threading.Event().wait()


def _hang_hard(text: str) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _hang(text)


def _frail(text: str) -> None:
    del text
    faulthandler.unregister(signal.SIGUSR1)


def _busy(text: str) -> None:
    del text
    # One call into C that never comes back, under the interpreter's lock.
    sum(itertools.repeat(0))


def _raise(text: str) -> None:
    raise ChaosError(text or "told to")


def _take(text: str) -> None:
    # Memory counts when it is written to.
    _kept.append(bytearray(b"x") * (int(text or 10) << 20))


def _fork(text: str) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
    if text == "":
        if os.fork() == 0:
            time.sleep(3600)
            os._exit(0)
    elif text == "session":
        subprocess.Popen(sleep, start_new_session=True)
    else:
        _daemon(sleep, {} if text == "clean" else None)


def _daemon(command: Sequence[str], environment: Mapping[str, str] | None) -> None:
    """Start a process whose parent has ended."""
    middle = os.fork()
    if middle == 0:
        os.setsid()
        subprocess.Popen(command, env=environment, start_new_session=True)
        os._exit(0)
    os.waitpid(middle, 0)


def _exit(text: str) -> None:
    os._exit(int(text or 1))


def _segfault(text: str) -> None:
    del text
    ctypes.string_at(0)


_ACTS: Mapping[str, Callable[[str], None]] = {
    "hang": _hang,
    "hang-hard": _hang_hard,
    "frail": _frail,
    "busy": _busy,
    "raise": _raise,
    "slow": lambda text: time.sleep(float(text or 1)),
    "leak": _take,
    "burst": _take,
    "fork": _fork,
    "exit": _exit,
    "segfault": _segfault,
}


def act(what: str, context: Any = None) -> None:
    """Misbehave once.

    >>> act("raise: no such table")
    Traceback (most recent call last):
    headrace.connect.testing.chaos.ChaosError: no such table
    """
    name, _, text = (part.strip() for part in what.partition(":"))
    if name == "fail":
        context.fail(text or "told to")
    elif name == "reconfigure":
        context.request_task_reconfiguration()
    else:
        _ACTS[name](text)


class Misbehaviour:
    """What a unit does wrong, by its config.

    Parameters
    ----------
    texts
        The config.
    unit
        ``connector`` or ``task``.
    context
        The unit's.
    """

    def __init__(self, texts: Mapping[str, str], unit: str, context: Any) -> None:
        self._texts = texts
        self._prefix = "chaos." if unit == "task" else f"chaos.{unit}."
        self._context = context
        self._calls: Counter[str] = Counter()
        self._trace = texts.get("trace")

    def __call__(self, callback: str) -> None:
        """Do what is to happen in this call of a callback."""
        self._calls[callback] += 1
        self._note(callback)
        for one in filter(None, self._told(callback).split(";")):
            what, _, first = one.partition("@")
            if self._calls[callback] >= int(first or 1):
                act(what, self._context)

    def _told(self, callback: str) -> str:
        told = self._texts.get(self._prefix + callback, "")
        if not told and callback in {"poll", "put"}:
            told = self._texts.get(f"{self._prefix}run", "")
        return told

    def _note(self, callback: str) -> None:
        """Write down which process and which thread was called."""
        if self._trace:
            with Path(self._trace).open("a") as trace:
                trace.write(f"{callback} {os.getpid()} {threading.get_native_id()}\n")


def _keys(unit: str, calls: Sequence[str]) -> ConfigDeclaration:
    prefix = "chaos." if unit == "task" else f"chaos.{unit}."
    return declare(*(key(prefix + one, str, f"What goes wrong in {one}().") for one in calls))


_COMMON = declare(
    key("topic", str, "Where the records go.", default="chaos"),
    key("trace", str, "File in which each call is written down: name, process, thread."),
    key("seen", str, "File in which a sink writes down the values that it is given."),
    key("chaos.task", str, "Set by the connector: the task's number."),
    key("records", int, "How many records a source gives in all.", default=1_000_000),
    key("per.poll", int, "How many records a poll gives.", default=10),
)


class _Chaos:
    """What both connectors share."""

    context: Any
    _chaos: Misbehaviour

    def start(self, config: Config) -> None:
        """Begin, or misbehave."""
        self._chaos = Misbehaviour(config.texts, "connector", self.context)
        self._chaos("start")

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Return the same config for each task."""
        self._chaos("task_configs")
        return [{"chaos.task": str(task)} for task in range(max_tasks)]

    def stop(self) -> None:
        """End, or misbehave."""
        self._chaos("stop")

    def healthy(self) -> bool:
        """Return True: all is well."""
        self._chaos("healthy")
        return True

    def validate(self, config: Config) -> Iterable[ConfigProblem]:
        """Accept a config, or hang over it."""
        Misbehaviour(config.texts, "task", None)("validate")
        return ()

    def alter_offsets(
        self, config: Config, offsets: Sequence[tuple[Position, Position | None]]
    ) -> bool:
        """Accept positions, or refuse them."""
        del offsets
        Misbehaviour(config.texts, "connector", None)("alter_offsets")
        return True


class ChaosSourceTask(SourceTask):
    """Counts, and misbehaves."""

    _chaos: Misbehaviour

    def start(self, config: Config) -> None:
        """Go on after what was committed."""
        self._chaos = Misbehaviour(config.texts, "task", self.context)
        self._partition = {"task": self.context.task}
        committed = self.context.offsets.get(self._partition) or {"count": 0}
        self._count = committed["count"]
        self._config = config
        self._chaos("start")

    def poll(self) -> Sequence[SourceRecord] | None:
        """Return the next numbers."""
        self._chaos("poll")
        left = self._config["records"] - self._count
        if left <= 0:
            self.context.stopping.wait(0.2)
            return None
        first = self._count
        self._count += min(left, self._config["per.poll"])
        return [
            SourceRecord(
                partition=self._partition,
                offset={"count": number + 1},
                topic=self._config["topic"],
                key=str(number),
                value=f"{self.context.task}-{number}",
            )
            for number in range(first, self._count)
        ]

    def commit(self) -> None:
        """Accept a commit."""
        self._chaos("commit")

    def stop(self) -> None:
        """End, or misbehave."""
        self._chaos("stop")

    def healthy(self) -> bool:
        """Return True: all is well."""
        self._chaos("healthy")
        return True


class ChaosSinkTask(SinkTask):
    """Writes values down, and misbehaves."""

    _chaos: Misbehaviour

    def start(self, config: Config) -> None:
        """Begin, or misbehave."""
        self._chaos = Misbehaviour(config.texts, "task", self.context)
        self._seen = config.get("seen")
        self._chaos("start")

    def open(self, queues: Collection[Queue]) -> None:
        """Accept the queues."""
        del queues
        self._chaos("open")

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Write the values down."""
        self._chaos("put")
        if self._seen:
            with Path(self._seen).open("a") as seen:
                seen.writelines(f"{one.value}\n" for one in records)

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Accept a flush."""
        del offsets
        self._chaos("flush")

    def close(self, queues: Collection[Queue]) -> None:
        """Accept that queues are taken away."""
        del queues
        self._chaos("close")

    def stop(self) -> None:
        """End, or misbehave."""
        self._chaos("stop")

    def healthy(self) -> bool:
        """Return True: all is well."""
        self._chaos("healthy")
        return True


class ChaosTransform(Transform):
    """A transform that misbehaves at the records that it is told to."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = declare(
        key("raise.on", int, "Number of the record at which it raises, from 1."),
        key("apply", str, "What goes wrong with each record.", default=""),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._raise_on = config.get("raise.on")
        self._wrong = config["apply"]
        self._records = 0

    def apply(self, record: Record) -> Record:
        """Return the record, or misbehave."""
        self._records += 1
        if self._records == self._raise_on:
            raise ChaosError(f"record {self._records} is bad")
        if self._wrong:
            act(self._wrong)
        return record


class ChaosSource(_Chaos, SourceConnector):
    """A source that misbehaves."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = (
        _COMMON | _keys("connector", CONNECTOR_CALLS) | _keys("task", SOURCE_CALLS)
    )
    task: ClassVar[type[SourceTask]] = ChaosSourceTask
    exactly_once: ClassVar[bool | None] = True


class ChaosSink(_Chaos, SinkConnector):
    """A sink that misbehaves."""

    version: ClassVar[str] = "1.0"
    config: ClassVar[ConfigDeclaration] = (
        _COMMON | _keys("connector", CONNECTOR_CALLS) | _keys("task", SINK_CALLS)
    )
    task: ClassVar[type[SinkTask]] = ChaosSinkTask
