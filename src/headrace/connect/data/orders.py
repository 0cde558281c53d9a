"""What a worker asks of its engine, and what the engine tells: one JSON object per line."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.connect.worker.launching import Figures

__all__ = [
    "Ask",
    "Command",
    "Commit",
    "Ended",
    "EngineEvent",
    "Hold",
    "Measured",
    "Ready",
    "Reply",
    "Start",
    "Stop",
    "Unit",
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
    #: Of a sink: topics, or a pattern of their names.
    topics: list[str] = []
    pattern: str = ""
    #: Where dead letters of a sink go; empty: nowhere.
    letters: str = ""
    #: How many tasks the connector has.
    tasks: int = 1
    #: Queues of topics that the task makes.
    queues: int = 4
    exact: bool = True
    paused: bool = False


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End a task's query, behind the batch that is under way."""

    request: int
    unit: Unit


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Begin no batch of a task, or go on."""

    request: int
    unit: Unit
    held: bool


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


Command = Start | Stop | Hold | Ask | Commit
"""What a worker asks."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Spark runs."""


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """What came of a request."""

    request: int
    value: Any = None
    #: Why nothing came of it.
    problem: str = ""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A query ended that nobody had asked to end."""

    unit: Unit
    problem: str


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """What a task has moved so far; told when it has changed."""

    unit: Unit
    figures: Figures


EngineEvent = Ready | Reply | Ended | Measured
"""What the engine tells."""
