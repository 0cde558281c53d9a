"""Waiting for what a worker does by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.connect.worker import Connect

__all__ = ["eventually", "state_of", "states", "until_running"]


async def eventually(holds: Callable[[], Any], patience: float = 5.0) -> None:
    """Wait until something holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while not holds():
        assert loop.time() < deadline, "it never held"
        await asyncio.sleep(0.005)


def state_of(connect: Connect, name: str) -> str:
    """State of a connector."""
    return connect.status(name).connector.state


def states(connect: Connect, name: str) -> list[str]:
    """States of a connector and its tasks, the connector's first."""
    status = connect.status(name)
    return [status.connector.state, *(task.state for task in status.tasks)]


async def until_running(connect: Connect, name: str, tasks: int = 1) -> None:
    """Wait until a connector and all its tasks run."""
    await eventually(lambda: states(connect, name) == ["RUNNING"] * (tasks + 1))
