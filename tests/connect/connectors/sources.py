"""Lives of a source's first task, one after the other, from the same committed positions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from headrace.connect import SourceConnector, SourceRecord
from headrace.connect.testing import SourceTaskKit
from headrace.connect.testing.contexts import KitOffsets, Requests


class SourceLife(SourceTaskKit):
    """One life of a source's first task."""

    def __init__(
        self,
        connector: type[SourceConnector],
        config: Mapping[str, str],
        committed: KitOffsets | None = None,
    ) -> None:
        super().__init__(connector, config, offsets=committed or KitOffsets())

    def until(self, count: int, seconds: float = 20) -> list[SourceRecord]:
        """Poll until so many records have come."""
        return self.read(count, timeout=timedelta(seconds=seconds))

    def quiet(self, polls: int = 5) -> list[SourceRecord]:
        """Poll until nothing has come for some polls."""
        return self.read_all(quiet=polls)


@contextmanager
def watching(kind: type[SourceConnector], config: Mapping[str, str]) -> Iterator[Requests]:
    """A connector that has started, without tasks; what it asks for."""
    kit = SourceTaskKit(kind, config)
    kit.connector.start(kit.config)
    try:
        yield kit.requests
    finally:
        kit.connector.stop()


def task_configs(
    kind: type[SourceConnector], config: Mapping[str, str], max_tasks: int = 1
) -> list[Mapping[str, str]]:
    """Ask a connector of its own for task configs."""
    kit = SourceTaskKit(kind, config)
    kit.connector.start(kit.config)
    try:
        return kit.connector.task_configs(max_tasks)
    finally:
        kit.connector.stop()


def await_that(condition: Callable[[], object], patience: float = 20) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def values(records: Sequence[SourceRecord], name: str) -> list[Any]:
    """One field of each record's value."""
    return [record.value[name] for record in records]


NewSourceLife = Callable[..., SourceLife]
