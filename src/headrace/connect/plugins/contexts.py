"""Contexts: what the runtime offers to connectors and tasks while they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from logging import Logger
from threading import Event, Lock
from typing import TYPE_CHECKING

from headrace.connect.records import Position, Queue, SinkRecord, position_key

if TYPE_CHECKING:
    from headrace.connect.config import Config


class OffsetReader(ABC):
    """Reads where a source stood at its last commit."""

    @abstractmethod
    def get(self, partition: Position) -> Position | None:
        """Return the committed offset of a partition; ``None`` when it was never read."""

    @abstractmethod
    def all(self) -> list[tuple[Position, Position]]:
        """Return every committed partition of the connector with its offset."""

    def get_many(self, partitions: Iterable[Position]) -> list[Position | None]:
        """Return the committed offsets of several partitions, in their order."""
        return [self.get(partition) for partition in partitions]


class CommittedPositions(OffsetReader):
    """The positions that were committed last; any thread may read and change them.

    Examples
    --------
    >>> committed = CommittedPositions([({"file": "a"}, {"byte": 3})])
    >>> committed.update([({"file": "a"}, {"byte": 9})])
    >>> committed.get({"file": "a"}), committed.get({"file": "b"})
    ({'byte': 9}, None)
    """

    def __init__(self, positions: Iterable[tuple[Position, Position]] = ()) -> None:
        self._lock = Lock()
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
        """Return whether these are all the positions that are known here."""
        given = {position_key(one): position_key(offset) for one, offset in positions}
        return given == {position_key(one): position_key(offset) for one, offset in self.all()}

    def get(self, partition: Position) -> Position | None:
        """Return the committed offset of a partition; ``None`` when it was never read."""
        with self._lock:
            found = self._by_key.get(position_key(partition))
        return None if found is None else found[1]

    def all(self) -> list[tuple[Position, Position]]:
        """Return every committed partition with its offset."""
        with self._lock:
            return list(self._by_key.values())


class _BaseContext(ABC):
    """What all contexts offer."""

    #: The connector's name.
    connector: str
    #: What the plugin declared, with typed values.
    config: Config
    #: Its lines appear among the worker's, with the connector's name and the task's number.
    logger: Logger
    #: Set when the runtime wants the unit to stop: wait on it in place of sleeping.
    stopping: Event

    @abstractmethod
    def request_task_reconfiguration(self) -> None:
        """Ask for new task configs: all tasks are stopped, computed anew and started."""

    @abstractmethod
    def fail(self, reason: str) -> None:
        """Put the unit into the phase ERROR with this reason; callable from any thread."""


class ConnectorContext(_BaseContext):
    """What a connector may ask of the runtime."""

    @property
    @abstractmethod
    def offsets(self) -> OffsetReader:
        """Committed positions of a source connector; empty for a sink connector."""


class _TaskContext(_BaseContext):
    #: The task's number within its connector.
    task: int
    #: The number of the assignment that the task belongs to: later lives have higher ones.
    generation: int = 0


class SourceTaskContext(_TaskContext):
    """What a source task may ask of the runtime."""

    @property
    @abstractmethod
    def offsets(self) -> OffsetReader:
        """The positions that were committed last."""


class SinkTaskContext(_TaskContext):
    """What a sink task may ask of the runtime."""

    @property
    @abstractmethod
    def queues(self) -> frozenset[Queue]:
        """The queues that the task reads now."""

    @abstractmethod
    def offset(self, queue: Queue, next_offset: int) -> None:
        """Go on with this offset of a queue, in place of the next one.

        Records before it are left out.  Where it lies behind, the batch under way is dropped, and
        the queues are closed and opened again; it wins over what ``offsets()`` of the task says.
        """

    def offsets(self, positions: Mapping[Queue, int]) -> None:
        """Go on with these offsets."""
        for queue, next_offset in positions.items():
            self.offset(queue, next_offset)

    @abstractmethod
    def pause(self, *queues: Queue) -> None:
        """Deliver no more records of these queues until :meth:`resume`.

        The batch that has some of them ends, and the next one begins, only after that.
        """

    @abstractmethod
    def resume(self, *queues: Queue) -> None:
        """Deliver records of these queues again."""

    @abstractmethod
    def request_commit(self) -> None:
        """Ask for ``flush`` as soon as the present ``put`` is over, and not only for the batch.

        The commit comes with the batch.
        """

    @abstractmethod
    def report(self, record: SinkRecord, error: BaseException) -> None:
        """Report a record that the sink cannot take, with the reason.

        With ``errors.tolerance=all`` the record goes to the dead-letter topic, if one is
        configured, and the task goes on.

        Raises
        ------
        BaseException
            The error itself, with ``errors.tolerance=none``.
        """
