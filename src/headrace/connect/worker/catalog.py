"""The plugins that a worker has, known without importing any."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from headrace.connect.worker.launching import Launcher, PluginAnswer, PluginCall, Question, Role
from headrace.errors import (
    ConnectNotFoundError,
    ConnectRequestError,
    PluginFailedError,
    PluginTimeoutError,
)
from headrace.spelling import did_you_mean

T = TypeVar("T")

_CLASS_KEY = "connector.class"
_CONNECTORS = ("source", "sink")


class PluginDescription(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
    """A plugin as its own process has described it."""

    class_name: str
    type: str
    version: str = ""
    #: Other names that it goes by.
    aliases: tuple[str, ...] = ()
    #: Why it cannot be used.
    error: str = ""

    @property
    def role(self) -> Role:
        """Which way it moves data."""
        return "sink" if self.type == "sink" else "source"

    def names(self) -> set[str]:
        """All names that it goes by, each whole: never a prefix."""
        simple = self.class_name.replace(":", ".").rpartition(".")[2]
        return {self.class_name, simple, simple.removesuffix("Connector"), *self.aliases}


class PluginInspector:
    """Asks plugins, each time in a process of its own.

    Parameters
    ----------
    launcher
        Starts those processes.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._plugins: tuple[PluginDescription, ...] | None = None
        #: What was installed when they were listed.
        self._installed: object = None
        self._connectors: Mapping[str, Sequence[PluginDescription]] = {}
        self._others: Mapping[str, Sequence[PluginDescription]] = {}
        #: Connectors that nothing lists, by the full names of their classes.
        self._unlisted: dict[str, PluginDescription] = {}
        self._loading = asyncio.Lock()

    async def plugins(self) -> tuple[PluginDescription, ...]:
        """Return all plugins, also those that were installed since they were last listed."""
        installed = self._launcher.installed()
        async with self._loading:
            if self._plugins is None or installed != self._installed:
                await self._load()
        assert self._plugins is not None
        return self._plugins

    def known(self, name: str) -> PluginDescription | None:
        """Return the connector plugin that a name means, if it has been listed."""
        found = self._connectors.get(name, ())
        return found[0] if len(found) == 1 else self._unlisted.get(name)

    async def connector(self, name: str) -> PluginDescription:
        """Return a connector plugin by any of its names; the full one needs no list.

        Raises
        ------
        ConnectNotFoundError
            There is none; the message names the one that was perhaps meant.
        ConnectRequestError
            The name means several.
        """
        found = self._unlisted.get(name) or await self._found(self._listed_connectors, name)
        if found is None:
            found = await self._find_unlisted(name)
        if found is None:
            raise ConnectNotFoundError(
                "Failed to find any class that implements Connector and which name matches"
                f" {name}, available connectors are: {self._available()}",
                hint=self._meant(name),
            )
        return found

    async def plugin(self, name: str) -> PluginDescription:
        """Return a plugin of any type by any of its names, connectors before others.

        Raises
        ------
        ConnectNotFoundError
            There is none.
        ConnectRequestError
            The name means several.
        """
        found = await self._found(self._listed_of_any_type, name)
        if found is None:
            found = self._unlisted.get(name) or await self._find_unlisted(name)
        if found is None:
            raise ConnectNotFoundError(f"Unknown plugin {name}.", hint=self._meant(name))
        return found

    async def of(self, config: Mapping[str, str]) -> PluginDescription:
        """Return the plugin that a config names.

        Raises
        ------
        ConnectRequestError
            It names none, one that is not there, or several.
        """
        name = config.get(_CLASS_KEY, "")
        if not name.strip():
            of = f"name={config['name']}" if "name" in config else ""
            raise ConnectRequestError(
                f"Connector config {{{of}}} contains no connector type: {_CLASS_KEY} is missing",
                hint="GET /connector-plugins lists the classes",
            )
        try:
            return await self.connector(name)
        except ConnectNotFoundError as error:
            raise ConnectRequestError(error.message, hint=error.hint) from None

    async def describe(self, plugin: PluginDescription) -> list[dict[str, Any]]:
        """Return the config keys of a plugin."""
        return await self._ask("describe", plugin.class_name, {}, list[dict[str, Any]])

    async def validate(
        self, plugin: PluginDescription, config: Mapping[str, str]
    ) -> dict[str, Any]:
        """Check a config; give each key with its value and what is wrong with it."""
        return await self._ask("validate", plugin.class_name, config, dict[str, Any])

    async def may_alter(
        self, plugin: PluginDescription, config: Mapping[str, str], offsets: list[dict[str, Any]]
    ) -> PluginAnswer:
        """Ask a connector whether its offsets may become these."""
        call = PluginCall(
            what="alter_offsets",
            connector_class=plugin.class_name,
            config=config,
            arguments={"offsets": offsets},
        )
        return await self._launcher.call(call)

    async def warm(self) -> None:
        """List the plugins before anybody asks; if that fails, whoever asks hears of it."""
        with contextlib.suppress(PluginFailedError):
            await self.plugins()

    async def _found(
        self, listed: Callable[[str], Sequence[PluginDescription]], name: str
    ) -> PluginDescription | None:
        if not listed(name):
            # It may have been installed since.
            async with self._loading:
                if not listed(name):
                    await self._load()
        found = listed(name)
        if len(found) > 1:
            classes = ", ".join(one.class_name for one in found)
            raise ConnectRequestError(
                f"More than one plugin matches alias {name}. Please use full package and class"
                f" name instead. Classes found: {classes}"
            )
        return found[0] if found else None

    def _listed_connectors(self, name: str) -> Sequence[PluginDescription]:
        return self._connectors.get(name, ())

    def _listed_of_any_type(self, name: str) -> Sequence[PluginDescription]:
        return self._connectors.get(name) or self._others.get(name, ())

    async def _find_unlisted(self, name: str) -> PluginDescription | None:
        """Look for the class that a full name means, which no package has announced."""
        if "." not in name and ":" not in name:
            return None
        for found in await self._ask("plugins", "", {}, tuple[PluginDescription, ...], only=name):
            self._unlisted[name] = found
            return found
        return None

    async def _load(self) -> None:
        self._installed = self._launcher.installed()
        self._plugins = await self._ask("plugins", "", {}, tuple[PluginDescription, ...])
        self._connectors = _by_name(one for one in self._plugins if one.type in _CONNECTORS)
        self._others = _by_name(one for one in self._plugins if one.type not in _CONNECTORS)

    async def _ask(
        self,
        what: Question,
        name: str,
        config: Mapping[str, str],
        kind: type[T],
        **arguments: Any,
    ) -> T:
        call = PluginCall(what=what, connector_class=name, config=config, arguments=arguments)
        answer = await self._launcher.call(call)
        about = f"{what} of {name}" if name else what
        if answer.timed_out:
            raise PluginTimeoutError(
                f"{about} timed out; its process was killed", hint=_told(answer)
            )
        if answer.failure is not None:
            raise PluginFailedError(f"{about} failed: {answer.failure.summary}")
        try:
            return msgspec.convert(answer.value, kind)
        except msgspec.ValidationError as error:
            raise PluginFailedError(f"{about} gave something else: {error}") from None

    def _available(self) -> str:
        connectors = (one for one in self._plugins or () if one.type in _CONNECTORS)
        return ", ".join(sorted(one.class_name for one in connectors))

    def _meant(self, name: str) -> str:
        otherwise = "GET /connector-plugins lists those that there are"
        return did_you_mean(name, self._connectors, otherwise)


def _by_name(plugins: Iterable[PluginDescription]) -> Mapping[str, Sequence[PluginDescription]]:
    """Find plugins by each of their names; a full name means its own class alone."""
    full = {plugin.class_name: plugin for plugin in plugins}
    found: dict[str, list[PluginDescription]] = {}
    for plugin in full.values():
        for name in plugin.names():
            found.setdefault(name, []).append(plugin)
    return found | {name: [plugin] for name, plugin in full.items()}


def _told(answer: PluginAnswer) -> str | None:
    return None if answer.failure is None else answer.failure.summary
