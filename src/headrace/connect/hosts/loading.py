"""Find and import plugins, and read their configs: in hosts only."""

from __future__ import annotations

import importlib
import inspect
import os
import site
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.connect.config.providers import references
from headrace.connect.converters.base import Converter, HeaderConverter
from headrace.connect.plugins import Connector
from headrace.connect.plugins.catalog import Catalog, Family, Plugin
from headrace.connect.plugins.validation import read_config
from headrace.connect.predicates.base import Predicate
from headrace.connect.transforms.base import Transform
from headrace.errors import PluginError

if TYPE_CHECKING:
    from headrace.connect.config import Config, Masking
    from headrace.connect.hosts.life import Unit
    from headrace.connect.hosts.spec import Told

__all__ = ["add_new_places", "catalog", "config_of", "connector_class", "connector_of"]


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
        """Say why there is nothing to load."""
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
    """Give all plugins: those that are installed, and those of some modules."""
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


def connector_of(unit: Unit, told: Told, masking: Masking) -> tuple[Any, Config]:
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
