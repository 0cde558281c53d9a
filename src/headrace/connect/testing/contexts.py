"""The contexts that the test kit gives: they keep what a plugin asks for, for the test to see."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from headrace.connect.plugins import (
    ConnectorContext,
    OffsetReader,
    SinkTaskContext,
    SourceTaskContext,
)
from headrace.connect.records import Position, Queue, SinkRecord, position_key
from headrace.errors import TaskFailedError

if TYPE_CHECKING:
    from headrace.connect.config import Config

__all__ = [
    "KitConnectorContext",
    "KitOffsets",
    "KitSinkContext",
    "KitSourceContext",
    "Requests",
]


class KitOffsets(OffsetReader):
    """Committed positions of a source, in memory.

    Examples
    --------
    >>> offsets = KitOffsets([({"file": "a"}, {"byte": 5})])
    >>> offsets.get({"file": "a"})
    {'byte': 5}
    """

    def __init__(self, positions: list[tuple[Position, Position]] | None = None) -> None:
        self._positions: dict[bytes, tuple[Position, Position]] = {}
        for partition, offset in positions or []:
            self.put(partition, offset)

    def put(self, partition: Position, offset: Position | None) -> None:
        """Commit the offset of a partition; None: it is gone."""
        if offset is None:
            self._positions.pop(position_key(partition), None)
        else:
            self._positions[position_key(partition)] = (dict(partition), dict(offset))

    def get(self, partition: Position) -> Position | None:
        """Give the committed offset of a partition; ``None`` when there is none."""
        found = self._positions.get(position_key(partition))
        return found[1] if found else None

    def all(self) -> list[tuple[Position, Position]]:
        """Give every committed partition with its offset."""
        return list(self._positions.values())


class Requests:
    """What a connector and its tasks have asked of the runtime."""

    def __init__(self) -> None:
        #: How often new task configs were asked for.
        self.reconfigurations = 0
        #: How often a sink task asked for a commit.
        self.commits = 0
        #: Why the unit says that it failed.
        self.failure: str | None = None

    def raise_failure(self) -> None:
        """Raise what ``fail(reason)`` said, if anything did.

        Raises
        ------
        TaskFailedError
            With the reason.
        """
        if self.failure is not None:
            message = f"The plugin called fail(): {self.failure}"
            raise TaskFailedError(message)


class _Kept:
    """What all contexts of the kit do alike."""

    requests: Requests

    def request_task_reconfiguration(self) -> None:
        self.requests.reconfigurations += 1

    def fail(self, reason: str) -> None:
        self.requests.failure = reason


class KitConnectorContext(_Kept, ConnectorContext):
    """The context of a connector in the kit."""

    def __init__(self, name: str, config: Config, offsets: KitOffsets, requests: Requests) -> None:
        _fill(self, name, config)
        self.requests = requests
        self._offsets = offsets

    @property
    def offsets(self) -> OffsetReader:
        """Committed positions of the kit."""
        return self._offsets


class KitSourceContext(_Kept, SourceTaskContext):
    """The context of a source task in the kit."""

    def __init__(self, name: str, config: Config, offsets: KitOffsets, requests: Requests) -> None:
        _fill(self, name, config)
        self.requests = requests
        self._offsets = offsets

    @property
    def offsets(self) -> OffsetReader:
        """Committed positions of the kit."""
        return self._offsets


class KitSinkContext(_Kept, SinkTaskContext):
    """The context of a sink task in the kit."""

    def __init__(
        self, name: str, config: Config, positions: dict[Queue, int], requests: Requests
    ) -> None:
        _fill(self, name, config)
        self.requests = requests
        #: The next offset of each queue.
        self.positions = positions
        #: Queues that the task does not want now.
        self.paused: set[Queue] = set()
        #: Records that the task reported, with the reason.
        self.reported: list[tuple[SinkRecord, BaseException]] = []
        self._tolerant = str(config.get("errors.tolerance", "none")).lower() == "all"

    @property
    def queues(self) -> frozenset[Queue]:
        """The queues of the kit."""
        return frozenset(self.positions)

    def offset(self, queue: Queue, next_offset: int) -> None:
        """Go on with this offset of a queue."""
        self.positions[queue] = next_offset

    def pause(self, *queues: Queue) -> None:
        """Give no more records of these queues."""
        self.paused.update(queues)

    def resume(self, *queues: Queue) -> None:
        """Give records of these queues again."""
        self.paused.difference_update(queues)

    def request_commit(self) -> None:
        """Count the wish."""
        self.requests.commits += 1

    def report(self, record: SinkRecord, error: BaseException) -> None:
        """Keep the record with ``errors.tolerance=all``; raise the error otherwise."""
        if not self._tolerant:
            raise error
        self.reported.append((record, error))


def _fill(context: Any, name: str, config: Config) -> None:
    context.connector = name
    context.task = 0
    context.generation = 1
    context.config = config
    context.logger = logging.getLogger(f"headrace.connect.{name}")
    context.stopping = threading.Event()
