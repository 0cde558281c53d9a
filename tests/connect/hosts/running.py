"""What tests of real hosts share: a loop, a listener, ways to look at processes."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from headrace.connect.config.providers import Permits
from headrace.connect.hosts import HostSettings, ProcessLauncher, TaskChannel
from headrace.connect.hosts.process_host import HostedUnit, ProcessHost, SharedUnit
from headrace.connect.worker import (
    Counted,
    Exited,
    HostEvent,
    HostSpec,
    Listener,
    Listens,
    Role,
    TopicTouched,
)

P = ParamSpec("P")
E = TypeVar("E")

SOURCE = "headrace.connect.testing.chaos:ChaosSource"
SINK = "headrace.connect.testing.chaos:ChaosSink"
PATIENCE = 45.0


def on_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test's coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def whole() -> None:
            await test(*args, **kwargs)

        asyncio.run(whole())

    # pytest would take it for a coroutine function.
    return run


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[HostEvent] = []
        self._changed = asyncio.Event()

    def __call__(self, event: HostEvent) -> None:
        self.events.append(event)
        self._changed.set()

    async def first(self, kind: type[E]) -> E:
        """Wait for the first event of a kind; what is heard instead is told."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    for event in self.events:
                        if isinstance(event, kind):
                            return event
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            heard = f"no {kind.__name__} within {PATIENCE:.0f} s, but {self.events}"
            raise AssertionError(heard) from None

    async def end(self) -> Exited:
        return await self.first(Exited)

    def kinds(self) -> list[str]:
        """What happened to the host itself, in order."""
        beside = TopicTouched | Listens | Counted
        return [type(one).__name__ for one in self.events if not isinstance(one, beside)]


Places = Sequence[tuple[dict[str, Any], dict[str, Any]]]
"""Where a source is."""


def begun(listener: Listener, positions: Places = ()) -> Listener:
    """Have a source task start where the open record of an epoch would have it."""
    loop = asyncio.get_running_loop()

    def begin(address: str) -> None:
        with TaskChannel(address) as channel:
            channel.begin(0, positions)

    def hear(event: HostEvent) -> None:
        listener(event)
        if isinstance(event, Listens):
            loop.run_in_executor(None, begin, event.address)

    return hear


class WithoutData(ProcessLauncher):
    """A launcher whose source tasks start though there is no engine."""

    async def launch(self, spec: HostSpec, listener: Listener) -> HostedUnit:
        return await super().launch(spec, begun(listener))


def launcher_in(folder: Path, **settings: Any) -> ProcessLauncher:
    everything = Permits(env=["*"], files=["/"], functions=["tests"])
    return ProcessLauncher(folder / "run", HostSettings(**{"permits": everything, **settings}))


async def launched(
    launcher: ProcessLauncher,
    *,
    role: Role = "source",
    task: int | None = 0,
    name: str = "chaos",
    memory_mb: int | None = None,
    paused: bool = False,
    generation: int = 1,
    positions: Places = (),
    **config: str,
) -> tuple[ProcessHost, Heard]:
    """Launch a chaos connector (task=None) or a task of it; ``_`` in keys stands for a dot.

    A key that has a dot stands for itself.
    """
    heard = Heard()
    texts = _texts(role, config)
    spec = HostSpec(
        kind="connector" if task is None else "task",
        connector=name,
        task=task,
        generation=generation,
        config=texts,
        memory_mb=memory_mb,
        role=role,
        paused=paused,
    )
    host = await launcher.launch(spec, begun(heard, positions))
    assert isinstance(host, ProcessHost)
    return host, heard


async def lodged(
    launcher: ProcessLauncher,
    name: str,
    *,
    generation: int = 1,
    memory_mb: int | None = None,
    **config: str,
) -> tuple[SharedUnit, Heard]:
    """Launch a chaos connector that shares its host; its class is what it shares by."""
    heard = Heard()
    texts = _texts("source", config)
    spec = HostSpec(
        kind="connector",
        connector=name,
        generation=generation,
        config=texts,
        memory_mb=memory_mb,
        role="source",
        shares=texts["connector.class"],
    )
    unit = await launcher.launch(spec, heard)
    assert isinstance(unit, SharedUnit)
    return unit, heard


def _texts(role: Role, config: Mapping[str, str]) -> dict[str, str]:
    texts = {key if "." in key else key.replace("_", "."): value for key, value in config.items()}
    return {"connector.class": SOURCE if role == "source" else SINK, **texts}


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie of somebody who does not wait for it has ended all the same.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def await_that(condition: Callable[[], bool], patience: float = PATIENCE) -> float:
    """Wait until something holds; give the seconds that it took."""
    before = time.monotonic()
    while not condition():
        assert time.monotonic() - before < patience, "it never came true"
        await asyncio.sleep(0.01)
    return time.monotonic() - before


def descendants_marked(folder: Path) -> list[int]:
    """All processes that began in the name of a worker's folder."""
    from headrace.connect.hosts.launcher import FOLDER_MARK
    from headrace.connect.hosts.processes import marked

    return list(marked(f"{FOLDER_MARK}={(folder / 'run').resolve()}"))
