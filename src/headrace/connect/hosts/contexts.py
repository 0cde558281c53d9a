"""The contexts that connectors and tasks get in their hosts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.connect.plugins import (
    ConnectorContext,
    OffsetReader,
    SinkTaskContext,
    SourceTaskContext,
)
from headrace.connect.records import Position, Queue, SinkRecord, position_key

if TYPE_CHECKING:
    from headrace.connect.config import Config
    from headrace.connect.hosts.control import Control
    from headrace.connect.hosts.life import Life

__all__ = ["Committed", "HostedConnector", "HostedSinkTask", "HostedSourceTask"]


class Committed(OffsetReader):
    """The positions that were committed last; any thread may read and change them.

    Examples
    --------
    >>> committed = Committed([({"file": "a"}, {"byte": 3})])
    >>> committed.update([({"file": "a"}, {"byte": 9})])
    >>> committed.get({"file": "a"}), committed.get({"file": "b"})
    ({'byte': 9}, None)
    """

    def __init__(self, positions: Iterable[tuple[Position, Position]]) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[bytes, tuple[Position, Position]] = {}
        self.update(positions)

    def update(self, positions: Iterable[tuple[Position, Position | None]]) -> None:
        """Learn of a commit; what has no offset is gone."""
        with self._lock:
            for partition, offset in positions:
                if offset is None:
                    self._by_key.pop(position_key(partition), None)
                else:
                    self._by_key[position_key(partition)] = partition, offset

    def replace(self, positions: Iterable[tuple[Position, Position]]) -> None:
        """Learn of all that is committed: nothing else is."""
        with self._lock:
            self._by_key = {position_key(one[0]): one for one in positions}

    def is_all(self, positions: Iterable[tuple[Position, Position]]) -> bool:
        """Tell whether these are all positions that it knows."""
        given = {position_key(one): position_key(offset) for one, offset in positions}
        return given == {position_key(one): position_key(offset) for one, offset in self.all()}

    def get(self, partition: Position) -> Position | None:
        """Give the committed offset of a partition; ``None`` when it was never read."""
        with self._lock:
            found = self._by_key.get(position_key(partition))
        return None if found is None else found[1]

    def all(self) -> list[tuple[Position, Position]]:
        """Give every committed partition with its offset."""
        with self._lock:
            return list(self._by_key.values())


class _Hosted:
    """What all contexts do in the same way."""

    def __init__(self, connector: str, config: Config, control: Control, life: Life) -> None:
        self.connector = connector
        self.config = config
        self.logger = logging.getLogger(f"headrace.connect.plugin.{connector}")
        self.stopping = life.stopping
        self._control = control
        self._life = life

    def request_task_reconfiguration(self) -> None:
        self._control.tell("reconfigure")

    def fail(self, reason: str) -> None:
        self._life.fail(reason)


class HostedConnector(_Hosted, ConnectorContext):
    """The context of a connector."""

    def __init__(
        self, connector: str, config: Config, control: Control, life: Life, committed: Committed
    ) -> None:
        super().__init__(connector, config, control, life)
        self._committed = committed

    @property
    def offsets(self) -> OffsetReader:
        """Committed positions of a source connector."""
        return self._committed


class HostedSourceTask(HostedConnector, SourceTaskContext):
    """The context of a source task."""

    #: The task's number.
    task = 0


class HostedSinkTask(_Hosted, SinkTaskContext):
    """The context of a sink task; what the task asks for goes out with the next answer."""

    #: The task's number.
    task = 0

    def __init__(self, connector: str, config: Config, control: Control, life: Life) -> None:
        super().__init__(connector, config, control, life)
        self._asking = threading.Lock()
        #: The queues that are open.
        self.open: frozenset[Queue] = frozenset()
        self._paused: set[Queue] = set()
        self._seek: dict[Queue, int] = {}
        self._commit = False
        #: Does with a record what the connector's policy says.
        self.reporter: Callable[[SinkRecord, Exception], None] = _refuse

    @property
    def queues(self) -> frozenset[Queue]:
        """The queues that the task reads now."""
        return self.open

    def offset(self, queue: Queue, next_offset: int) -> None:
        """Go on with this offset of a queue."""
        with self._asking:
            self._seek[queue] = next_offset

    def pause(self, *queues: Queue) -> None:
        """Give no more records of these queues."""
        with self._asking:
            self._paused.update(queues)

    def resume(self, *queues: Queue) -> None:
        """Give records of these queues again."""
        with self._asking:
            self._paused.difference_update(queues)

    def request_commit(self) -> None:
        """Ask for a commit soon."""
        with self._asking:
            self._commit = True

    def report(self, record: SinkRecord, error: BaseException) -> None:
        """Hand over a record that the sink cannot take: without tolerance the task fails."""
        if not isinstance(error, Exception):
            raise error
        self.reporter(record, error)

    def asked(self) -> tuple[dict[str, object], dict[Queue, int]]:
        """Give what the task has asked for since, as the engine gets it, and the seeks alone."""
        with self._asking:
            asked: dict[str, object] = {}
            if self._paused:
                asked["paused"] = [list(queue) for queue in sorted(self._paused)]
            if self._seek:
                asked["seek"] = [[*queue, offset] for queue, offset in self._seek.items()]
            if self._commit:
                asked["commit"] = True
            seeks, self._seek, self._commit = self._seek, {}, False
        return asked, seeks


def _refuse(record: SinkRecord, error: Exception) -> None:
    del record
    raise error
