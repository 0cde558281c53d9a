"""What a host finds and imports of plugins, and the contexts that it gives them."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import site
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connect.config.providers import references
from headrace.connect.converters.base import Converter, HeaderConverter
from headrace.connect.lifecycle import ReconfigureAsked
from headrace.connect.plugins import (
    Connector,
    ConnectorContext,
    OffsetReader,
    SinkTaskContext,
    SourceTaskContext,
)
from headrace.connect.plugins.catalog import Catalog, Family, Plugin
from headrace.connect.plugins.validation import read_config
from headrace.connect.predicates.base import Predicate
from headrace.connect.transforms.base import Transform
from headrace.errors import PluginError

if TYPE_CHECKING:
    from headrace.connect.channel import ChildEnd, Told
    from headrace.connect.config import Config, Masking
    from headrace.connect.hosts.life import Life, RunningUnit
    from headrace.connect.plugins.contexts import CommittedPositions
    from headrace.connect.records import Queue, SinkRecord


# Find and import plugins, and read their configs: in hosts only.

_FAMILIES: tuple[tuple[type[object], Family], ...] = (
    (Connector, "connectors"),
    # REST lists a class once, as what it was named last.
    (HeaderConverter, "header_converters"),
    (Converter, "converters"),
    (Transform, "transforms"),
    (Predicate, "predicates"),
)


@dataclass(frozen=True, slots=True)
class _Broken(Plugin):
    """What stands for the plugins of a module that cannot be imported."""

    error: BaseException | None = None

    def load(self) -> type[object]:
        """Raise the reason why there is nothing to load."""
        why = f"{type(self.error).__name__}: {self.error}"
        raise PluginError(f"The module {self.origin} cannot be imported: {why}") from self.error


def add_new_places(folders: Iterable[str], since: float) -> None:
    """Put on the path what was installed there since a time: packages that are edited in place.

    Examples
    --------
    >>> add_new_places(["/no/such/folder"], since=0.0)
    """
    for folder in folders:
        try:
            with os.scandir(folder) as found:
                lists = [one for one in found if one.name.endswith(".pth")]
                new = sorted(one.name for one in lists if one.stat().st_ctime > since)
        except OSError:
            continue
        for name in new:
            site.addpackage(folder, name, None)


def catalog(modules: Sequence[str] = ()) -> Catalog:
    """Return all plugins: those that are installed, and those of some modules."""
    installed = Catalog.installed()
    if not modules:
        return installed
    found = (plugin for module in modules for plugin in _plugins_of(module))
    return Catalog([*installed.plugins, *found])


def _plugins_of(module: str) -> Iterator[Plugin]:
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - plugins may raise anything
        yield _Broken(f"{module}:connectors", "connectors", origin=module, error=error)
        return
    for name, thing in vars(found).items():
        own = inspect.isclass(thing) and thing.__module__ == found.__name__
        if own and not inspect.isabstract(thing):
            for family in (of for kind, of in _FAMILIES if issubclass(thing, kind)):
                yield Plugin(f"{module}:{name}", family, origin=module)


def connector_class(texts: Mapping[str, str], modules: Sequence[str] = ()) -> type[Connector]:
    """Import the class that ``connector.class`` names, by any of its names.

    Raises
    ------
    PluginError
        There is none, it cannot be imported, or it is something else.
    """
    name = texts.get("connector.class", "")
    found = catalog(modules).load(name, "connectors")
    if not issubclass(found, Connector):
        raise PluginError(
            f"connector.class is {name!r}, which is no connector: {found!r}",
            hint="It must be a subclass of SourceConnector or SinkConnector.",
        )
    return found


def connector_of(unit: RunningUnit, told: Told, masking: Masking) -> tuple[Any, Config]:
    """Import a unit's connector and read its config, each as a step that a cause can name.

    The class is whatever its package made of it, so nothing is known of its type.
    """
    with unit.in_call("import"):
        kind = connector_class(told.config, told.modules)
    with unit.in_call("reading its config"):
        return kind, config_of(kind, told.config, masking)


def config_of(kind: type[Connector], texts: Mapping[str, str], masking: Masking) -> Config:
    """Read a config, and have its secrets hidden from then on: also all that comes from outside.

    Raises
    ------
    ConnectorConfigError
        Naming everything that is wrong.
    """
    masking.learn(references(texts).values())
    config = read_config(kind, texts)
    masking.learn_typed(config)
    return config


# The contexts that connectors and tasks get in their hosts.


class _Hosted:
    """What all contexts do in the same way."""

    def __init__(self, connector: str, config: Config, control: ChildEnd, life: Life) -> None:
        self.connector = connector
        self.config = config
        self.logger = logging.getLogger(f"headrace.connect.plugin.{connector}")
        self.stopping: threading.Event = life.stopping
        self._control = control
        self._life = life

    def request_task_reconfiguration(self) -> None:
        self._control.tell(ReconfigureAsked())

    def fail(self, reason: str) -> None:
        self._life.fail(reason)


class HostedConnector(_Hosted, ConnectorContext):
    """The context of a connector."""

    def __init__(
        self,
        connector: str,
        config: Config,
        control: ChildEnd,
        life: Life,
        committed: CommittedPositions,
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
    """The context of a sink task."""

    #: The task's number.
    task = 0

    def __init__(self, connector: str, config: Config, control: ChildEnd, life: Life) -> None:
        super().__init__(connector, config, control, life)
        self._asking = threading.Lock()
        #: The queues that are open.
        self.open: frozenset[Queue] = frozenset()
        #: The queues of which the task wants no records.
        self.paused: frozenset[Queue] = frozenset()
        self._seeks: dict[Queue, int] = {}
        #: Set when the task has asked for a commit.
        self.commit_asked = threading.Event()
        #: Has the task's own thread look at what was asked for.
        self.changed: Callable[[], None] = _ignore
        #: Does with a record what the connector's policy says.
        self.reporter: Callable[[SinkRecord, Exception], None] = _refuse

    @property
    def queues(self) -> frozenset[Queue]:
        """The queues that the task reads now."""
        return self.open

    def offset(self, queue: Queue, next_offset: int) -> None:
        """Go on with this offset of a queue."""
        with self._asking:
            self._seeks[queue] = next_offset
        self.changed()

    def pause(self, *queues: Queue) -> None:
        """Deliver no more records of these queues."""
        with self._asking:
            self.paused = self.paused.union(queues)

    def resume(self, *queues: Queue) -> None:
        """Deliver records of these queues again."""
        with self._asking:
            self.paused = self.paused.difference(queues)
        self.changed()

    def request_commit(self) -> None:
        """Ask for a flush soon."""
        self.commit_asked.set()
        self.changed()

    def report(self, record: SinkRecord, error: BaseException) -> None:
        """Hand over a record that the sink cannot take: without tolerance the task fails."""
        if not isinstance(error, Exception):
            raise error
        self.reporter(record, error)

    def take_seeks(self) -> dict[Queue, int]:
        """Return the offsets at which the task has asked to go on since the last call."""
        with self._asking:
            seeks, self._seeks = self._seeks, {}
        return seeks


def _ignore() -> None:
    """Do nothing: the task's thread has not begun to serve anybody."""


def _refuse(record: SinkRecord, error: Exception) -> None:
    del record
    raise error
