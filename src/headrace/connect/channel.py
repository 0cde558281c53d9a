"""What a worker and the processes that it starts say to each other: one message of JSON a line.

Events are those of the lifecycle; the rest is here.  A fork server and its keepers have sockets
that keep messages apart.  What cannot be read is an error, as both ends are of one version.
A host that several connectors share says `Started`, and then takes the other ends of their channels
as they come through its own, a descriptor with each byte.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from headrace.connect.config.providers import Permits
from headrace.connect.lifecycle import (
    Cause,
    Failed,
    HostEvent,
    Interrupted,
    Moved,
    Started,
    Terms,
    WaitsFor,
)
from headrace.watched import OnFailure, end_process, watched_thread

#: So much of a line is shown that cannot be read: what comes further on may be secret.
_SHOWN = 60


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


class Messages:
    r"""Reads messages of certain kinds.

    >>> messages = Messages(Born | Left)
    >>> list(messages.feed(encode(Born(7)) + b'{"type":')), list(messages.feed(b'"Left"}\n'))
    ([Born(pid=7)], [Left()])
    """

    def __init__(self, kinds: Any) -> None:
        self._decoder = msgspec.json.Decoder(kinds)
        self._rest = bytearray()

    def read(self, line: bytes) -> Any:
        """Return the message of a line.

        Raises
        ------
        ValueError
            It is none.
        """
        try:
            return self._decoder.decode(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{line[:_SHOWN]!r} is no message: {error}") from error

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages whose lines end here; the rest of one waits for more."""
        searched = len(self._rest)
        self._rest += data
        while (end := self._rest.find(b"\n", searched)) >= 0:
            line, searched = bytes(self._rest[:end]), 0
            del self._rest[: end + 1]
            yield self.read(line)


class ChildEnd:
    """The end of a channel in the process that was started.

    Parameters
    ----------
    connected
        The socket to the worker.
    kinds
        Types of what the worker says.
    alone
        Whether the process ends with it.
    """

    def __init__(self, connected: socket.socket, kinds: Any, *, alone: bool = True) -> None:
        self.alone = alone
        self._socket = connected
        self._lines = connected.makefile("rb")
        self._messages = Messages(kinds)
        self._telling = threading.Lock()

    def tell(self, message: msgspec.Struct) -> None:
        """Send the worker a message, from any thread; one that is gone hears nothing."""
        line = encode(message)
        with self._telling, contextlib.suppress(OSError):
            self._socket.sendall(line)

    def hear(self) -> Any:
        """Wait for the next message of the worker; end where there is no worker any more.

        Raises
        ------
        EOFError
            Nothing more comes, and others share the process.
        """
        line = b""
        with contextlib.suppress(OSError):
            line = self._lines.readline()
        # The worker may be gone in the middle of a line.
        if line.endswith(b"\n"):
            return self._messages.read(line)
        if self.alone:
            os._exit(1)
        raise EOFError

    def follow(self, hear: Mapping[type, Callable[[Any], object]], on_failure: OnFailure) -> None:
        """Go on hearing in a thread of its own; no answer to a message must wait.

        The end of what is heard is a `Stop`.
        """

        def listen() -> None:
            with contextlib.suppress(EOFError):
                while True:
                    message = self.hear()
                    hear[type(message)](message)
            self._lines.close()
            hear[Stop](Stop())

        watched_thread(
            listen,
            name="headrace-control",
            on_failure=end_process if self.alone else on_failure,
        ).start()

    def close(self) -> None:
        """Neither tell nor hear anything more."""
        with contextlib.suppress(OSError):
            # Whoever hears in another thread is woken by that, and not by the end of the descriptor.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


# What a host and the engine are told and tell.


class Level(msgspec.Struct, frozen=True, tag=True):
    """Set the level of a logger, and of those below it."""

    logger: str
    level: int


class Reply(msgspec.Struct, frozen=True, tag=True):
    """What came of a request."""

    #: Its number; 0: the question that a process lives for.
    request: int
    #: What plugins made is `msgspec.Raw`: orjson writes it, and refuses what has no form in JSON.
    value: Any = None
    #: Why nothing came of it.
    failure: Cause | None = None
    #: Whether the same request may succeed later: the brokers are away.
    passes: bool = False


# What a host is told, and what it tells besides its events.


class Told(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a host is to run: the first message."""

    #: ``connector``, ``task``, ``call``, or ``shared``: a host for connectors of one class.
    kind: str
    connector: str = ""
    task: int = 0
    generation: int = 0
    role: str = "source"
    config: dict[str, str] = {}
    paused: bool = False
    #: Where the data channel of a task listens.
    address: str = ""
    #: Committed positions of a source connector: partition and offset.
    positions: list[tuple[dict[str, Any], dict[str, Any]]] = []
    #: Seconds between two health probes; 0: none.
    probe: float = 0.0
    #: Seconds between two looks at values from outside; 0: none.
    outside: float = 0.0
    #: Most records and bytes that a source polls ahead.
    ahead_records: int = 50_000
    ahead_bytes: int = 16 << 20
    #: Folders that plugins are imported from, before all others.
    folders: list[str] = []
    #: Modules with plugins that no entry point names.
    modules: list[str] = []
    #: What its config may take from outside.
    permits: Permits = Permits()
    #: The question of a call, with the connector's class and what more it needs.
    what: str = ""
    connector_class: str = ""
    arguments: dict[str, Any] = {}
    #: Levels of loggers, in the order in which they were set.
    levels: list[tuple[str, int]] = []

    @property
    def who(self) -> str:
        """Names the unit in causes.

        >>> Told(kind="task", connector="orders", task=2).who
        "task 2 of connector 'orders'"
        """
        unit = f"connector '{self.connector}'"
        if self.kind == "call":
            return f"connector '{self.connector or self.connector_class}'"
        return unit if self.kind == "connector" else f"task {self.task} of {unit}"


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Call ``stop()`` once the last ``poll`` or ``put`` is over, and exit."""


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Stop polling and delivering, or go on."""

    paused: bool


class AskTasks(msgspec.Struct, frozen=True, tag=True):
    """Call ``task_configs()`` of a connector that runs."""

    request: int


HostCommand = Told | Stop | Pause | Level | AskTasks


class Born(msgspec.Struct, frozen=True, tag=True):
    """A host is there, before it has run anything."""

    pid: int


class Left(msgspec.Struct, frozen=True, tag=True):
    """The thread of a connector in a shared host ends."""


HostMessage = HostEvent | Born | Reply | Left


# What the engine is told and tells.


class TaskCopy(msgspec.Struct, frozen=True):
    """One copy of a task."""

    connector: str
    task: int
    generation: int

    def failed(self, problem: str) -> Failed:
        """Return the event that its query has ended for good."""
        who = f"the query of task {self.task} of connector '{self.connector}'"
        summary, _, _ = problem.partition("\n")
        return Failed(Cause(f"{who}: {summary}", problem))


class StartQuery(msgspec.Struct, frozen=True, tag=True):
    """Run a task's query."""

    request: int
    unit: TaskCopy
    role: str
    #: Where the task's host listens.
    address: str
    #: What the task's config asks for.
    terms: Terms = Terms()
    #: How many tasks the connector has.
    tasks: int = 1
    paused: bool = False
    #: The name under which its connector's positions are kept; empty: the connector's.
    kept_as: str = ""


class StopQuery(msgspec.Struct, frozen=True, tag=True):
    """End a task's query, behind the batch that is under way."""

    request: int
    unit: TaskCopy


class Hold(msgspec.Struct, frozen=True, tag=True):
    """Begin no batch of a task, or go on."""

    request: int
    unit: TaskCopy
    held: bool


class AskPositions(msgspec.Struct, frozen=True, tag=True):
    """Read where a connector is."""

    request: int
    connector: str


class CommitPositions(msgspec.Struct, frozen=True, tag=True):
    """Commit other positions of a connector that does not run; an offset of None forgets."""

    request: int
    connector: str
    #: Name of each partition, and its offset.
    positions: dict[str, Any] = {}
    #: Forget all others.
    reset: bool = False


class Forget(msgspec.Struct, frozen=True, tag=True):
    """Remove all that tasks of a connector have committed; none of them lives."""

    request: int
    connector: str


Request = StartQuery | StopQuery | Hold | AskPositions | CommitPositions | Forget
EngineCommand = Request | Level


class QueryEvent(msgspec.Struct, frozen=True, tag=True):
    """What happens to the query of a task."""

    unit: TaskCopy
    event: Moved | WaitsFor | Failed | Interrupted


EngineMessage = Started | Reply | QueryEvent


# What a fork server is asked for, and what it and its keepers tell.


class Order(msgspec.Struct, frozen=True):
    """Fork a host and its keeper."""

    number: int
    #: 32 characters that no other host has.
    token: str
    #: Bytes that the host and all that it starts may take; None: no limit.
    memory: int | None
    #: Whether it ends with its worker's lease.
    leased: bool


class Forked(msgspec.Struct, frozen=True, tag=True):
    """An order is carried out; a descriptor of the keeper's process comes with it."""

    number: int
    keeper: int


class KeeperEnded(msgspec.Struct, frozen=True, tag=True):
    """The keeper of an order has ended."""

    number: int
    #: Whether all that it left is gone as well.
    clean: bool


class HostEnded(msgspec.Struct, frozen=True):
    """Nothing of a host is left: the last word of its keeper."""

    #: What ``waitpid`` gave.
    status: int | None = None
    #: ``exit``, ``killed``, ``orphaned``, ``lease`` or ``memory``.
    why: str = ""
    #: Bytes that it took.
    used: int = 0
