"""Run a source task by hand: poll, commit, die, go on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from headrace.connect import (
    ConnectorContext,
    OffsetReader,
    SourceBatch,
    SourceConnector,
    SourceRecord,
    SourceTask,
    SourceTaskContext,
)
from headrace.connect.records import Position, position_key


class Committed(OffsetReader):
    """Positions that outlive a task."""

    def __init__(self) -> None:
        self.positions: dict[bytes, tuple[Position, Position]] = {}

    def get(self, partition: Position) -> Position | None:
        found = self.positions.get(position_key(partition))
        return None if found is None else found[1]

    def all(self) -> list[tuple[Position, Position]]:
        return list(self.positions.values())

    def commit(self, records: Iterable[SourceRecord]) -> None:
        for one in records:
            self.positions[position_key(one.partition)] = (one.partition, one.offset)


class HandTaskContext(SourceTaskContext):
    def __init__(self, committed: Committed) -> None:
        self.connector = "source"
        self.task = 0
        self.logger = logging.getLogger("source")
        self.stopping = threading.Event()
        self._committed = committed

    @property
    def offsets(self) -> OffsetReader:
        return self._committed

    def request_task_reconfiguration(self) -> None:
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)


class HandConnectorContext(ConnectorContext):
    def __init__(self, committed: Committed) -> None:
        self.connector = "source"
        self.logger = logging.getLogger("source")
        self.stopping = threading.Event()
        self.reconfigured = threading.Event()
        self._committed = committed

    @property
    def offsets(self) -> OffsetReader:
        return self._committed

    def request_task_reconfiguration(self) -> None:
        self.reconfigured.set()

    def fail(self, reason: str) -> None:
        raise AssertionError(reason)


@dataclass
class SourceLife:
    """One life of a source's first task."""

    connector: type[SourceConnector]
    config: Mapping[str, str]
    committed: Committed
    task: SourceTask = field(init=False)
    context: HandTaskContext = field(init=False)
    #: What was given since the last commit.
    given: list[SourceRecord] = field(default_factory=list)

    def __enter__(self) -> Self:
        shares = task_configs(self.connector, self.config, self.committed)
        self.task = self.connector.task()
        self.task.context = self.context = HandTaskContext(self.committed)
        try:
            self.task.start(self.connector.config.parse({**self.config, **shares[0]}))
        except BaseException:
            self.task.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.context.stopping.set()
        self.task.stop()

    def poll(self) -> list[SourceRecord]:
        """Poll once."""
        found = self.task.poll() or []
        assert not isinstance(found, SourceBatch)
        self.given += found
        return list(found)

    def until(self, count: int, seconds: float = 20) -> list[SourceRecord]:
        """Poll until so many records have come."""
        found: list[SourceRecord] = []
        deadline = time.monotonic() + seconds
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records: {found}"
            found += self.poll()
        return found

    def quiet(self, polls: int = 5) -> list[SourceRecord]:
        """Poll until nothing has come for some polls."""
        found: list[SourceRecord] = []
        idle = 0
        while idle < polls:
            more = self.poll()
            found += more
            idle = 0 if more else idle + 1
        return found

    def commit(self) -> None:
        """Commit what was given, as the runtime does."""
        self.committed.commit(self.given)
        self.given.clear()
        self.task.commit()


def task_configs(
    kind: type[SourceConnector],
    config: Mapping[str, str],
    committed: Committed | None = None,
    max_tasks: int = 1,
) -> list[Mapping[str, str]]:
    """Ask a connector of its own for task configs."""
    connector = kind()
    connector.context = HandConnectorContext(committed or Committed())
    parsed = kind.config.parse(config)
    assert list(connector.validate(parsed)) == []
    connector.start(parsed)
    try:
        return connector.task_configs(max_tasks)
    finally:
        connector.stop()


def values(records: Sequence[SourceRecord], name: str) -> list[Any]:
    """One field of each record's value."""
    return [record.value[name] for record in records]


NewSourceLife = Callable[..., SourceLife]
