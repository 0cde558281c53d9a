"""What a worker asks of its engine, and what the engine tells: one JSON object per line."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.connect.hosts.terms import Terms
from headrace.connect.worker.launching import Figures

__all__ = [
    "Ask",
    "Command",
    "Commit",
    "Ended",
    "EngineEvent",
    "Forget",
    "Hold",
    "Level",
    "Measured",
    "Ready",
    "Reply",
    "Start",
    "Stop",
    "Unit",
    "Waits",
]


class Unit(msgspec.Struct, frozen=True):
    """One copy of a task."""

    connector: str
    task: int
    generation: int


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Run a task's query."""

    request: int
    unit: Unit
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


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End a task's query, behind the batch that is under way."""

    request: int
    unit: Unit


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Begin no batch of a task, or go on."""

    request: int
    unit: Unit
    held: bool


class Level(msgspec.Struct, frozen=True, tag="level"):
    """Set the level of a logger, and of those below it."""

    request: int
    logger: str
    level: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Say where a connector is."""

    request: int
    connector: str


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    """Commit other positions of a connector that does not run; an offset of None forgets."""

    request: int
    connector: str
    #: Name of each partition, and its offset.
    positions: dict[str, Any] = {}
    #: Forget all others.
    reset: bool = False


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Remove all that tasks of a connector have committed; none of them lives."""

    request: int
    connector: str


Command = Start | Stop | Hold | Ask | Commit | Forget | Level
"""What a worker asks."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Spark runs."""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """What came of a request."""

    request: int
    value: Any = None
    #: Why nothing came of it.
    problem: str = ""
    #: Whether the same request may succeed later: the brokers are away.
    passes: bool = False


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A query ended that nobody had asked to end."""

    unit: Unit
    problem: str
    #: Whether it may go on later: the brokers are away.
    passes: bool = False


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """What a task has moved so far; told when it has changed."""

    unit: Unit
    figures: Figures


class Waits(msgspec.Struct, frozen=True, tag="waits"):
    """A query runs, and waits for something."""

    unit: Unit
    #: What that is; empty: for nothing more.
    what: str


EngineEvent = Ready | Reply | Ended | Measured | Waits
"""What the engine tells."""
