"""The contexts of the test kit: they keep what a plugin asks for, for the test to see."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from headrace.connect.plugins import (
    Connector,
    ConnectorContext,
    OffsetReader,
    SinkTaskContext,
    SourceTaskContext,
    Task,
)
from headrace.connect.plugins.catalog import Catalog, Plugin
from headrace.connect.plugins.contexts import CommittedPositions
from headrace.connect.plugins.validation import read_config, validate
from headrace.errors import ConfigurationError, ConnectorConfigError, TaskFailedError

if TYPE_CHECKING:
    from headrace.connect.config import Config
    from headrace.connect.records import Position, Queue, SinkRecord


class KitOffsets(CommittedPositions):
    """Committed positions of a source, in memory.

    Examples
    --------
    >>> offsets = KitOffsets([({"file": "a"}, {"byte": 5})])
    >>> offsets.get({"file": "a"})
    {'byte': 5}
    """

    def put(self, partition: Position, offset: Position | None) -> None:
        """Commit the offset of a partition, or forget it if that is None."""
        self.update([(dict(partition), None if offset is None else dict(offset))])


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


class _WithOffsets(_Kept):
    """What contexts of sources do alike."""

    def __init__(self, name: str, config: Config, offsets: KitOffsets, requests: Requests) -> None:
        _fill(self, name, config)
        self.requests = requests
        self._offsets = offsets

    @property
    def offsets(self) -> OffsetReader:
        return self._offsets


class KitConnectorContext(_WithOffsets, ConnectorContext):
    """The context of a connector in the kit."""


class KitSourceContext(_WithOffsets, SourceTaskContext):
    """The context of a source task in the kit."""


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
        """Deliver no more records of these queues."""
        self.paused.update(queues)

    def resume(self, *queues: Queue) -> None:
        """Deliver records of these queues again."""
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


# What the kits of sources and sinks share: a connector, its config, lives of one task.

OneTask = TypeVar("OneTask", bound=Task)


def checked(connector: type[Connector], texts: Mapping[str, str]) -> Config:
    """Check a config as the runtime does, and read it.

    Raises
    ------
    ConnectorConfigError
        Naming everything that is wrong.
    """
    target = f"{connector.__module__}:{connector.__qualname__}"
    installed = [one for one in Catalog.installed().plugins if one.target != target]
    # At hand already, so that a connector may also be a class of a test function.
    plugin = Plugin(target, "connectors", loaded=connector)
    answer = validate(Catalog([*installed, plugin]), plugin.class_name, texts)
    problems = [
        (one["value"]["name"], text) for one in answer["configs"] for text in one["value"]["errors"]
    ]
    if problems:
        raise ConnectorConfigError.of(problems)
    return read_config(connector, texts)


class TaskKit(Generic[OneTask]):
    """A connector and one of its tasks, which may live several lives.

    Caller: :class:`SourceTaskKit` and :class:`SinkTaskKit`.
    """

    #: Tasks by number, as the connector shared its work out.
    task_configs: list[Mapping[str, str]]
    #: The task's current life.
    task: OneTask

    def __init__(
        self,
        connector: type[Connector],
        texts: Mapping[str, Any],
        *,
        number: int = 0,
        offsets: KitOffsets | None = None,
    ) -> None:
        written = {name: _text(value) for name, value in texts.items()}
        self.texts = {"name": "kit", "connector.class": _name_of(connector), **written}
        #: The connector's config, with typed values.
        self.config = checked(connector, self.texts)
        #: Committed positions of a source.
        self.committed = offsets if offsets is not None else KitOffsets()
        #: What connector and task have asked for.
        self.requests = Requests()
        self.connector = connector()
        self.connector.context = KitConnectorContext(
            self.texts["name"], self.config, self.committed, self.requests
        )
        self._number = number
        self._generation = 0
        self._alive = False

    def __enter__(self) -> Self:
        self.connector.start(self.config)
        try:
            self.task_configs = self._shared_out()
            self._begin()
        except BaseException:
            self.connector.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end()
        finally:
            self.connector.stop()

    def _shared_out(self) -> list[Mapping[str, str]]:
        most = self.config["tasks.max"]
        configs = list(self.connector.task_configs(most))
        if len(configs) > most:
            message = f"task_configs() gave {len(configs)} configs, and tasks.max is {most}."
            raise ConfigurationError(message, hint="Give at most as many as it is asked for.")
        values: list[tuple[str, object]] = [pair for one in configs for pair in one.items()]
        for name, value in values:
            if not isinstance(value, str):
                message = f"task_configs() gave the {type(value).__name__} {value!r} for {name}."
                raise ConfigurationError(message, hint="Write values as a config has them: text.")
        return configs

    def restart(self) -> None:
        """Stop the task, and begin its next life where it was committed."""
        self._end()
        self._begin()

    def crash(self) -> None:
        """Drop the task without ``stop()``, as ``kill -9`` does, and begin its next life."""
        self._alive = False
        self._begin()

    def _begin(self) -> None:
        task_class: type[OneTask] = type(self.connector).task  # type: ignore[attr-defined]
        own = self.task_configs[self._number]
        config = read_config(type(self.connector), {**self.texts, **own})
        self._generation += 1
        self.requests.failure = None
        self.task = task_class()
        context: Any = self._context(config)
        context.task = self._number
        context.generation = self._generation
        self.task.context = context  # type: ignore[attr-defined]
        self._alive = True
        try:
            self.task.start(config)
            self._started()
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        if self._alive:
            self._alive = False
            self.task.context.stopping.set()  # type: ignore[attr-defined]
            self.task.stop()

    def _context(self, config: Config) -> Any:
        raise NotImplementedError

    def _started(self) -> None:
        """Do what comes between ``start()`` and the first record."""


def _name_of(connector: type[Connector]) -> str:
    return f"{connector.__module__}.{connector.__qualname__}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
