"""What tests of the data plane share: an engine with its hosts, and tasks that move lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.connect.data import DataPlane
from headrace.connect.hosts import ProcessLauncher
from headrace.connect.worker import HostSpec, Role, WaitsFor
from headrace.settings import JobSettings
from tests.connect.chaos.workers import show_end
from tests.connect.hosts.running import Heard


@asynccontextmanager
async def plane_at(
    namesrv: str, folder: Path, jobs: JobSettings | None = None
) -> AsyncIterator[DataPlane]:
    """An engine of its own, with hosts."""
    async with (
        ProcessLauncher(folder / "hosts") as launcher,
        DataPlane(launcher, namesrv, folder / "engine", jobs=jobs) as plane,
    ):
        try:
            yield plane
        except BaseException:
            show_logs(folder)
            raise


def show_logs(folder: Path) -> None:
    """Print what an engine and its hosts logged last: it is seen where the test has failed."""
    for log in (folder / "engine" / "engine.log", *folder.glob("hosts/**/*.log")):
        show_end(log.stem, log)


def task(connector: str, role: Role, generation: int = 1, /, **config: str) -> HostSpec:
    """The only task of a connector; ``_`` in keys stands for a dot."""
    texts = {name.replace("_", "."): text for name, text in config.items()}
    return HostSpec(
        kind="task",
        connector=connector,
        task=0,
        generation=generation,
        config=texts,
        role=role,
    )


def source(folder: Path, topic: str, generation: int) -> HostSpec:
    """A task that brings the lines of a file into a topic."""
    file = str(folder / "in.txt")
    return task(
        f"in-{topic}", "source", generation, connector_class="file-source", file=file, topic=topic
    )


def sink(folder: Path, topic: str, generation: int) -> HostSpec:
    """A task that writes the lines of a topic into a file."""
    file = str(folder / "out.txt")
    return task(
        f"out-{topic}", "sink", generation, connector_class="file-sink", file=file, topics=topic
    )


def written(folder: Path) -> list[str]:
    """Lines that the sink has written."""
    return lines_of(folder / "out.txt")


def lines_of(file: Path) -> list[str]:
    """Lines of a file that may not be there yet."""
    return file.read_text().splitlines() if file.exists() else []


def waits_for(heard: Heard) -> str:
    """What a task has said last that it waits for."""
    said = [event.what for event in heard.events if isinstance(event, WaitsFor)]
    return said[-1] if said else ""


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds, also on a busy machine."""
    async with asyncio.timeout(240):
        while not condition():
            await asyncio.sleep(0.05)
