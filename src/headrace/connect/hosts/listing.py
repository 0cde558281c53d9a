"""List plugins of which one cannot even be imported: each in a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from headrace.connect.hosts.spec import Told
from headrace.connect.worker.launching import PluginAnswer

__all__ = ["list_one_by_one"]

#: Processes at a time.
_SIDE_BY_SIDE = 4

Ask = Callable[[Told], Awaitable[PluginAnswer]]
"""Asks a question in a process of its own."""


async def list_one_by_one(told: Told, ask: Ask) -> PluginAnswer:
    """Import each plugin alone; one that kills its process is listed as broken.

    Parameters
    ----------
    told
        The question for all plugins.
    ask
        Asks others like it.
    """
    names = await ask(msgspec.structs.replace(told, what="plugin_names"))
    if names.failure is not None:
        return names
    free = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def entries(name: dict[str, Any]) -> list[dict[str, Any]]:
        async with free:
            alone = msgspec.structs.replace(told, arguments={"only": name["target"]})
            answer = await ask(alone)
        if answer.failure is None:
            found: list[dict[str, Any]] = answer.value
            return found
        return [{**name["entry"], "error": answer.failure.summary}]

    found = await asyncio.gather(*map(entries, names.value))
    return PluginAnswer(value=[entry for one in found for entry in one])
