"""``headrace connect worker``: runs a worker of a cluster until it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from headrace.cli._cluster import DeclaredOptions, cluster_address, given_settings, settings_from
from headrace.cli._terminal import say
from headrace.cli.connect.rest import require_packages
from headrace.errors import ConfigurationError, JobFailedError

if TYPE_CHECKING:
    from headrace.connect.coordination import Cluster
    from headrace.connect.data import DataPlane
    from headrace.connect.hosts import HostSettings, ProcessLauncher
    from headrace.connect.rest import RestServer
    from headrace.connect.running import RunningWorker
    from headrace.connect.worker import WorkerSettings
    from headrace.settings import JobSettings


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class WorkerCommand(DeclaredOptions, TyperCommand):
    """The command, with the settings of a worker."""

    declared = "headrace.connect.worker:WorkerSettings"


def worker(
    context: typer.Context,
    plugin_path: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="Folder that plugins are imported from first; repeatable."
        ),
    ] = None,
    master: Annotated[str, typer.Option(metavar="MASTER", help="Where Spark runs.")] = "local[2,4]",
) -> None:
    """Run a worker with its connectors, until Ctrl-C or SIGTERM; a second one hurries it."""
    from headrace.connect.worker import WorkerSettings

    # What is missing is said before anything is started.
    require_packages("prometheus_client", "starlette", "uvicorn")
    settings = WorkerSettings.from_env(**given_settings(context))
    _refuse_old_log(settings.data / "log" / "connect.log")
    jobs = settings_from()
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=form, level="WARNING")
    logging.getLogger("headrace.connect").setLevel(logging.INFO)
    folders = tuple(str(folder.absolute()) for folder in plugin_path or ())
    place = _WorkPlace(folders, replace(jobs, master=master))
    asyncio.run(_work(settings, place))


def _refuse_old_log(log: Path) -> None:
    if log.exists():
        raise ConfigurationError(
            f"the configs of a worker of an earlier release are in {log}, and workers keep them in a"
            " topic now",
            hint="move the file away, start the worker, and create the connectors again: their configs"
            " are the connector-put records of that file",
        )


@dataclass(frozen=True, slots=True)
class _WorkPlace:
    """The surroundings of a worker: its plugins, jobs and brokers."""

    #: Plugins are imported from there first.
    folders: tuple[str, ...]
    #: How its jobs run, and how the brokers are reached.
    jobs: JobSettings


async def _work(settings: WorkerSettings, place: _WorkPlace) -> None:
    """Run a worker on a cluster of brokers until it is asked to stop.

    The worker first takes its folder, which another one may hold; then REST answers, and tells
    what the worker does until it has all that it needs.
    """
    from headrace.connect.hosts import ProcessLauncher
    from headrace.connect.rest import RestServer
    from headrace.connect.running import serve

    def tell(running: RunningWorker) -> None:
        sys.stdout.write(
            f"headrace connect worker listening on {running.url}, data in {settings.data}\n"
        )
        sys.stdout.flush()

    hosts = _host_settings(settings, place)
    with _stoppable():
        async with (
            ProcessLauncher(settings.data / "hosts", hosts) as launcher,
            RestServer(settings) as server,
            _broker_of(place, server) as address,
            _plane_of(settings, place, launcher, address, server) as plane,
            _cluster_of(settings, place, address, server) as cluster,
        ):
            await serve(settings, plane, cluster, positions=plane, server=server, ready=tell)


@contextlib.asynccontextmanager
async def _broker_of(place: _WorkPlace, server: RestServer) -> AsyncIterator[str]:
    """Yield the name server's address, once there is one; look for Java meanwhile."""
    from headrace.java import find_java

    server.startup.step("looks for Java and for its broker")
    await asyncio.to_thread(find_java)
    stack = contextlib.ExitStack()
    entering = asyncio.ensure_future(
        asyncio.to_thread(stack.enter_context, cluster_address(place.jobs))
    )
    try:
        yield await asyncio.shield(entering)
    finally:
        # A broker that has begun to start is ended once it has.
        await asyncio.wait([entering])
        stack.close()


@contextlib.asynccontextmanager
async def _cluster_of(
    settings: WorkerSettings, place: _WorkPlace, address: str, server: RestServer
) -> AsyncIterator[Cluster]:
    from headrace.client import AsyncClient, ClientSettings
    from headrace.connect.running import joined_cluster

    server.startup.step(f"joins the cluster of workers '{settings.group}'")
    client = AsyncClient(address, ClientSettings(**place.jobs.connection))
    async with client, joined_cluster(client, settings) as cluster:
        yield cluster


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let a signal end the start; once the worker runs, it handles the signals itself."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    for number in _SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    except asyncio.CancelledError:
        say("Stopped before the worker was ready.")
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _host_settings(settings: WorkerSettings, place: _WorkPlace) -> HostSettings:
    from headrace.connect.config.providers import Permits
    from headrace.connect.hosts import HostSettings

    return HostSettings(
        call_timeout=settings.call_timeout.total_seconds(),
        folders=place.folders,
        modules=settings.plugins,
        permits=Permits(
            env=list(settings.allow_env),
            files=[str(path.absolute()) for path in settings.allow_file],
            functions=list(settings.allow_function),
        ),
        warm=True,
    )


@contextlib.asynccontextmanager
async def _plane_of(
    settings: WorkerSettings,
    place: _WorkPlace,
    launcher: ProcessLauncher,
    address: str,
    server: RestServer,
) -> AsyncIterator[DataPlane]:
    """Start the engine."""
    from headrace.connect.data import DataPlane

    server.startup.step("starts Spark")
    engine, jobs = settings.data / "engine", place.jobs
    plane = DataPlane(launcher, address, engine, master=jobs.master, jobs=jobs)
    try:
        try:
            await plane.engine.open()
        except TimeoutError as error:
            raise JobFailedError(
                "Spark did not start in time", hint=f"{engine / 'engine.log'} tells why"
            ) from error
        yield plane
    finally:
        await plane.close()
