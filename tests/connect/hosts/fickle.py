"""Connectors whose peer is away for as long as a file says so, in the calls that it names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from headrace.connect import (
    Config,
    Queue,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceConnector,
    SourceRecord,
    SourceTask,
)
from headrace.errors import ConnectionFailedError


class _Peer:
    def __init__(self, config: Config) -> None:
        self._away, self._journal = (Path(config.texts[name]) for name in ("away", "journal"))

    def call(self, name: str, outcome: object = "") -> None:
        """Do something over there, and note it where it could be done."""
        if self._away.exists() and name in self._away.read_text().split():
            raise ConnectionFailedError(f"nobody answers {name}")
        with self._journal.open("a") as journal:
            journal.write(f"{name} {outcome}\n".replace(" \n", "\n"))


class FickleSinkTask(SinkTask):
    """Does everything over there."""

    def start(self, config: Config) -> None:
        """Connect."""
        assert not hasattr(self, "_peer"), "a start that failed is not made again by the same task"
        self._peer = _Peer(config)
        self._peer.call("start")

    def open(self, queues: Collection[Queue]) -> None:
        """Open them there."""
        self._peer.call("open", len(queues))

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Write."""
        self._peer.call("put", len(records))

    def flush(self, offsets: Mapping[Queue, int]) -> None:
        """Make sure."""
        self._peer.call("flush", sum(offsets.values()))

    def healthy(self) -> bool:
        """Ask."""
        self._peer.call("healthy")
        return True


class FickleSink(SinkConnector):
    """Has such tasks, and starts over there itself."""

    task = FickleSinkTask

    def start(self, config: Config) -> None:
        """Connect."""
        self._peer = _Peer(config)
        self._peer.call("connector")

    def task_configs(self, max_tasks: int) -> list[Mapping[str, str]]:
        """Look there what is to be done."""
        self._peer.call("tasks", max_tasks)
        return [{}]


class FickleSourceTask(SourceTask):
    """Counts over there."""

    _count = 0

    def start(self, config: Config) -> None:
        """Connect."""
        assert not hasattr(self, "_peer"), "a start that failed is not made again by the same task"
        self._peer = _Peer(config)
        self._peer.call("start")

    def poll(self) -> Sequence[SourceRecord] | None:
        """Give the next number."""
        self._peer.call("poll", self._count)
        self._count += 1
        return [
            SourceRecord(partition={}, offset={"n": self._count}, topic="t", value=str(self._count))
        ]

    def commit(self) -> None:
        """Tell of it."""
        self._peer.call("commit")


class FickleSource(SourceConnector):
    """Has such a task."""

    task = FickleSourceTask
