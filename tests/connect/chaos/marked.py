"""Connectors whose live copies can be counted from outside, whatever their worker says.

A task holds a lock on a file of its own from its start to the end of its process, which the kernel
sees to.  One that finds the lock taken is a second live copy: it says so in the marks, and goes on.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from headrace.connect import Config, SinkTask, declare, key
from headrace.connect.config import ConfigDeclaration
from headrace.connect.connectors.datagen import DatagenSourceConnector, DatagenSourceTask
from headrace.connect.connectors.file import FileSinkConnector, FileSinkTask
from headrace.connect.connectors.postgres import PostgresSinkConnector
from headrace.connect.connectors.postgres.database import PostgresSinkTask
from headrace.leases import boot_time

__all__ = ["Mark", "MarkedDatagen", "MarkedFileSink", "MarkedPostgresSink", "read_marks"]

_MARKS = declare(key("marks", str, "Folder of locks and marks.", required=True))


class Mark(msgspec.Struct, frozen=True):
    """What a task did, and when."""

    #: ``start``, ``stop`` or ``twice``.
    what: str
    connector: str
    task: int
    generation: int
    pid: int
    #: Seconds since the machine was started.
    at: float


def read_marks(folder: Path) -> Sequence[Mark]:
    """Give all marks, in their order."""
    file = folder / "marks"
    if not file.exists():
        return []
    return [msgspec.json.decode(line, type=Mark) for line in file.read_bytes().splitlines()]


class _Presence:
    """The mark of one live copy."""

    def __init__(self, folder: Path, context: Any) -> None:
        self._folder, self._context = folder, context
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{context.connector}-{context.task}.lock"
        self._lock = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.note("twice")
        self.note("start")

    def note(self, what: str) -> None:
        """Write a mark down; short lines that are appended are whole."""
        context = self._context
        mark = Mark(
            what, context.connector, context.task, context.generation, os.getpid(), boot_time()
        )
        with (self._folder / "marks").open("ab", buffering=0) as marks:
            marks.write(msgspec.json.encode(mark) + b"\n")


class _Marked:
    """Marks the life of the task that this is mixed into."""

    context: Any

    def start(self, config: Config) -> None:
        """Mark the start."""
        self._presence = _Presence(Path(config["marks"]), self.context)
        super().start(config)  # type: ignore[misc]

    def stop(self) -> None:
        """Mark the end."""
        self._presence.note("stop")
        super().stop()  # type: ignore[misc]


class MarkedDatagenTask(_Marked, DatagenSourceTask):
    """Makes rows."""


class MarkedFileSinkTask(_Marked, FileSinkTask):
    """Writes lines."""


class MarkedPostgresSinkTask(_Marked, PostgresSinkTask):
    """Writes rows."""


class MarkedDatagen(DatagenSourceConnector):
    """A source of rows with ids that nobody else gives."""

    config: ClassVar[ConfigDeclaration] = DatagenSourceConnector.config | _MARKS
    task = MarkedDatagenTask


class MarkedPostgresSink(PostgresSinkConnector):
    """The sink itself, with marks."""

    config: ClassVar[ConfigDeclaration] = PostgresSinkConnector.config | _MARKS
    task: ClassVar[type[SinkTask]] = MarkedPostgresSinkTask


class MarkedFileSink(FileSinkConnector):
    """The sink of lines, with marks."""

    config: ClassVar[ConfigDeclaration] = FileSinkConnector.config | _MARKS
    task = MarkedFileSinkTask
