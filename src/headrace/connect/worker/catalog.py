"""The plugins that a worker has, known without importing any."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec

from headrace.connect.worker.launching import Launcher, PluginAnswer, PluginCall, Question, Role
from headrace.errors import (
    ConnectNotFoundError,
    ConnectRequestError,
    PluginFailedError,
    PluginTimeoutError,
)

__all__ = ["Catalog", "Plugin"]

T = TypeVar("T")

_CLASS_KEY = "connector.class"
_CONNECTORS = ("source", "sink")


class Plugin(msgspec.Struct, frozen=True, rename={"class_name": "class"}):
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


class Catalog:
    """Asks plugins, each time in a process of its own.

    Parameters
    ----------
    launcher
        Starts those processes.
    """

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._plugins: tuple[Plugin, ...] | None = None
        self._connectors: Mapping[str, Plugin] = {}
        self._others: Mapping[str, Plugin] = {}
        self._loading = asyncio.Lock()

    async def plugins(self) -> tuple[Plugin, ...]:
        """Give all plugins; they are listed once, and again when a name is not found."""
        async with self._loading:
            if self._plugins is None:
                await self._load()
        assert self._plugins is not None
        return self._plugins

    def known(self, name: str) -> Plugin | None:
        """Give a connector plugin by any of its names, if it has been listed."""
        return self._connectors.get(name)

    async def connector(self, name: str) -> Plugin:
        """Give a connector plugin by any of its names.

        Raises
        ------
        ConnectNotFoundError
            There is none; the message names the one that was perhaps meant.
        """
        found = await self._found(self.known, name)
        if found is None:
            raise ConnectNotFoundError(
                f"there is no connector plugin '{name}'", hint=self._meant(name)
            )
        return found

    async def plugin(self, name: str) -> Plugin:
        """Give a plugin of any type by any of its names, connectors before others.

        Raises
        ------
        ConnectNotFoundError
            There is none.
        """
        found = await self._found(self._known_of_any_type, name)
        if found is None:
            raise ConnectNotFoundError(f"there is no plugin '{name}'", hint=self._meant(name))
        return found

    async def of(self, config: Mapping[str, str]) -> Plugin:
        """Give the plugin that a config names.

        Raises
        ------
        ConnectRequestError
            It names none, or one that is not there.
        """
        name = config.get(_CLASS_KEY, "")
        if not name.strip():
            raise ConnectRequestError(
                f"the config has no {_CLASS_KEY}", hint="GET /connector-plugins lists the classes"
            )
        try:
            return await self.connector(name)
        except ConnectNotFoundError as error:
            raise ConnectRequestError(error.message, hint=error.hint) from None

    async def describe(self, plugin: Plugin) -> list[dict[str, Any]]:
        """Give the config keys of a plugin."""
        return await self._ask("describe", plugin.class_name, {}, list[dict[str, Any]])

    async def validate(self, plugin: Plugin, config: Mapping[str, str]) -> dict[str, Any]:
        """Check a config; give each key with its value and what is wrong with it."""
        return await self._ask("validate", plugin.class_name, config, dict[str, Any])

    async def may_alter(
        self, plugin: Plugin, config: Mapping[str, str], offsets: list[dict[str, Any]]
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

    async def _found(self, find: Callable[[str], Plugin | None], name: str) -> Plugin | None:
        await self.plugins()
        found = find(name)
        if found is None:
            # It may have been installed since.
            async with self._loading:
                await self._load()
            found = find(name)
        return found

    def _known_of_any_type(self, name: str) -> Plugin | None:
        return self._connectors.get(name) or self._others.get(name)

    async def _load(self) -> None:
        self._plugins = await self._ask("plugins", "", {}, tuple[Plugin, ...])
        self._connectors = _by_name(one for one in self._plugins if one.type in _CONNECTORS)
        self._others = _by_name(one for one in self._plugins if one.type not in _CONNECTORS)

    async def _ask(
        self,
        what: Question,
        name: str,
        config: Mapping[str, str],
        kind: type[T],
    ) -> T:
        call = PluginCall(what=what, connector_class=name, config=config)
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

    def _meant(self, name: str) -> str:
        close = get_close_matches(name, self._connectors, n=1)
        if close:
            return f"did you mean {self._connectors[close[0]].class_name}?"
        return "GET /connector-plugins lists those that there are"


def _by_name(plugins: Iterable[Plugin]) -> Mapping[str, Plugin]:
    """Find plugins by each of their names; the first that goes by one has it."""
    found: dict[str, Plugin] = {}
    for plugin in plugins:
        for name in plugin.names():
            found.setdefault(name, plugin)
    return found


def _told(answer: PluginAnswer) -> str | None:
    return None if answer.failure is None else answer.failure.summary
