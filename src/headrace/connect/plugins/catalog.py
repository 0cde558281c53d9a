"""The catalog: which plugins there are, by which names, and whether their code can be loaded.

Making a catalog imports no plugin.  Loading one does, and belongs in processes that may die.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headrace.connect.plugins.builtin import BUILTIN, REPLACED, PluginType
from headrace.connect.plugins.connectors import SinkConnector, SourceConnector
from headrace.errors import PluginError
from headrace.spelling import did_you_mean

logger = logging.getLogger(__name__)

Family = str
"""What a config key asks for: ``connectors``, ``converters``, ``header_converters`` ..."""

GROUPS: Mapping[Family, tuple[PluginType, ...]] = {
    "connectors": ("source", "sink"),
    "converters": ("converter",),
    "header_converters": ("header_converter",),
    "transforms": ("transformation",),
    "predicates": ("predicate",),
}
"""The entry point groups, each below ``headrace.connect.``, and the types that are found there."""

_SUFFIXES = ("Connector", "Converter", "Predicate")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin of the catalog, not loaded yet."""

    #: ``module:Class``.
    target: str
    family: Family
    #: Its type; known for what comes with Headrace, found out by loading for all else.
    known: PluginType | None = None
    aliases: tuple[str, ...] = ()
    #: The distribution that brings it.
    origin: str = "headrace"
    #: The class, where it is at hand and need not be imported.
    loaded: type[Any] | None = None

    @property
    def class_name(self) -> str:
        """The class with its module, as REST shows it."""
        return self.target.replace(":", ".")

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that means this plugin, the full one first.

        >>> Plugin("connectors.file:FileSourceConnector", "connectors").names[2:]
        ('FileSourceConnector', 'FileSource')
        """
        # Kafka's names of its classes work without their packages, too.
        simple = [one.rpartition(".")[2] for one in (self.class_name, *self.aliases)]
        short = [one.removesuffix(end) for one in simple for end in _SUFFIXES if one.endswith(end)]
        return tuple(dict.fromkeys((self.class_name, self.target, *simple, *self.aliases, *short)))

    def load(self) -> type[Any]:
        """Import the plugin's class.

        Raises
        ------
        PluginError
            When its module raises, lacks the class, or exits.
        """
        if self.loaded is not None:
            return self.loaded
        module, _, name = self.target.partition(":")
        try:
            found = getattr(importlib.import_module(module), name)
        except (Exception, SystemExit) as error:
            why = f"{type(error).__name__}: {error}"
            message = f"The plugin {self.class_name} of {self.origin} cannot be loaded: {why}"
            hint = "Correct its module, or install what it needs into the worker's environment."
            raise PluginError(message, hint=hint) from error
        if not inspect.isclass(found):
            message = f"The plugin {self.class_name} of {self.origin} is no class."
            raise PluginError(message, hint="Let its entry point name a class: module:Class.")
        return found


class Catalog:
    """All plugins of this environment, by their names.

    Parameters
    ----------
    plugins
        What is in it; see :meth:`installed`.

    Examples
    --------
    >>> catalog = Catalog([Plugin("headrace.connect:Secret", "transforms", aliases=("hide",))])
    >>> catalog.find("hide", "transforms").class_name
    'headrace.connect.Secret'
    >>> catalog.find("hid", "transforms")
    Traceback (most recent call last):
    headrace.errors.PluginError: There is no plugin 'hid' among the transforms.
      → did you mean 'hide'?
    """

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        self.plugins = tuple(plugins)
        self._by_name: dict[tuple[Family, str], list[Plugin]] = {}
        for plugin in self.plugins:
            for name in plugin.names:
                same = self._by_name.setdefault((plugin.family, name), [])
                if all(one.target != plugin.target for one in same):
                    same.append(plugin)

    @classmethod
    def installed(cls) -> Catalog:
        """Return the catalog of what comes with Headrace and of all entry points; import none."""
        return _installed(tuple(map(packages_in, sys.path)))

    def find(self, name: str, family: Family) -> Plugin:
        """Return the plugin of a name; names are compared whole, never by their beginning.

        A name of the shape ``module:Class`` or ``module.Class`` needs no entry point.

        Raises
        ------
        PluginError
            When there is none of that name, or several.
        """
        found = self._by_name.get((family, name), [])
        if len(found) > 1:
            full = ", ".join(one.class_name for one in found)
            message = f"The name {name!r} means several of the {family}: {full}."
            raise PluginError(message, hint="Give the full name.")
        if found:
            return found[0]
        replaced = REPLACED.get(name.removeprefix("headrace.connect.connectors.storage."))
        if replaced is None and (plugin := _unlisted(name, family)):
            return plugin
        known = [one for of, one in self._by_name if of == family]
        near = did_you_mean(name, known, "install the package that brings it")
        message = f"There is no plugin {name!r} among the {family}."
        raise PluginError(message, hint=replaced or near)

    def load(self, name: str, family: Family) -> type[Any]:
        """Import the class of a plugin."""
        return self.find(name, family).load()

    def listing(self) -> list[dict[str, Any]]:
        """Load every plugin and return what each is; one that is broken says why.

        >>> Catalog([Plugin("no.such:Thing", "transforms", origin="shop")]).listing()[0]["error"]
        "The plugin no.such.Thing of shop cannot be loaded: ModuleNotFoundError: No module ..."
        """
        listed = {one["class"]: one for plugin in self.plugins for one in [_entry(plugin)]}
        return sorted(listed.values(), key=lambda one: (one["type"], one["class"]))


@lru_cache(maxsize=1)
def _installed(packages: tuple[tuple[object, ...], ...]) -> Catalog:
    """Make the catalog; metadata are read again only when a package comes or goes."""
    del packages
    return Catalog([*_builtin(), *_entry_points()])


def packages_in(place: str) -> tuple[object, ...]:
    """Return the packages of a place on the path that have metadata, with version and time.

    Examples
    --------
    >>> packages_in("/no/such/place")
    ('/no/such/place',)
    """
    try:
        with os.scandir(place or ".") as found:
            metadata = [one for one in found if one.name.endswith((".dist-info", ".egg-info"))]
            since = sorted((one.name, one.stat().st_mtime_ns) for one in metadata)
    except OSError:
        return (place,)
    return place, *since


def _entry(plugin: Plugin) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "class": plugin.class_name,
        "type": plugin.known or _guess(plugin),
        "version": "undefined",
        "aliases": list(plugin.names[1:]),
    }
    try:
        loaded = plugin.load()
        entry["type"] = plugin.known or type_of(loaded, plugin)
        entry["version"] = _version(loaded, plugin)
    except PluginError as error:
        logger.warning("%s", error)
        entry["error"] = error.message
    return entry


def _version(loaded: type[Any], plugin: Plugin) -> str:
    version = str(getattr(loaded, "version", "undefined"))
    if version == "undefined":
        try:
            return importlib.metadata.version(plugin.origin)
        except importlib.metadata.PackageNotFoundError:
            return version
    return version


def type_of(loaded: type[Any], plugin: Plugin) -> PluginType:
    """Return the type of a loaded plugin.

    Raises
    ------
    PluginError
        When a connector is neither a source nor a sink.
    """
    if plugin.family != "connectors":
        return GROUPS[plugin.family][0]
    if issubclass(loaded, SourceConnector):
        return "source"
    if issubclass(loaded, SinkConnector):
        return "sink"
    message = f"The connector {plugin.class_name} is neither a source nor a sink."
    raise PluginError(message, hint="Derive it from SourceConnector or SinkConnector.")


def _guess(plugin: Plugin) -> PluginType:
    # Of a connector that cannot be imported its name alone is left to go by.
    types = GROUPS[plugin.family]
    return "sink" if "sink" in plugin.target.lower() and len(types) > 1 else types[0]


def _unlisted(name: str, family: Family) -> Plugin | None:
    target = name if ":" in name else ":".join(name.rsplit(".", 1))
    module, colon, attribute = target.partition(":")
    if not (colon and attribute.isidentifier() and all(map(str.isidentifier, module.split(".")))):
        return None
    try:
        # The packages around the module are imported for this.
        there = importlib.util.find_spec(module) is not None
    except (Exception, SystemExit):
        logger.debug("looking for %s failed", module, exc_info=True)
        there = False
    return Plugin(target, family, origin=module.partition(".")[0]) if there else None


def _builtin() -> Iterator[Plugin]:
    families = {kind: family for family, types in GROUPS.items() for kind in types}
    for one in BUILTIN:
        yield Plugin(one.target, families[one.type], one.type, one.aliases)


def _entry_points() -> Iterator[Plugin]:
    # Asked once: each question reads the metadata of every installed distribution.
    points = importlib.metadata.entry_points()
    for family in GROUPS:
        for point in points.select(group=f"headrace.connect.{family}"):
            origin = point.dist.name if point.dist is not None else point.module
            target = f"{point.module}:{point.attr}"
            yield Plugin(target, family, aliases=(point.name,), origin=origin)
