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
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._cluster import cluster_address, settings_from
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


_REST = "REST"
_ACCESS = "What configs may take from this machine"
_TIMES = "Times"
_CLUSTER = "Cluster of workers"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def worker(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (127.0.0.1).", rich_help_panel=_REST)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="Port; 0: a free one (8083).", rich_help_panel=_REST),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="HEADRACE_CONNECT_TOKEN",
            help="Token that requests must bring; others on this machine see options, but not"
            " variables.",
            rich_help_panel=_REST,
        ),
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificate, PEM: speak TLS.", rich_help_panel=_REST),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Key of the certificate, PEM.", rich_help_panel=_REST),
    ] = None,
    cors_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="ORIGIN",
            help="Web origin whose pages may call REST; repeatable.",
            rich_help_panel=_REST,
        ),
    ] = None,
    allow_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Variable that ${env:NAME} in a config may take; * for any text; repeatable.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    allow_file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="File or folder that ${file:PATH:KEY} in a config may read; repeatable.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    allow_function: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="Module whose functions PythonFunction may call; repeatable.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    allow_anyone: Annotated[
        bool,
        typer.Option(
            "--allow-anyone",
            help="Listen on addresses other than loopback without a token: anyone who reaches them"
            " can run code here.",
            rich_help_panel=_REST,
        ),
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the cluster of workers that it joins (headrace-connect).",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    worker_id: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of this worker, unique in the cluster; status shows it, so give the address"
            " at which others reach it (host name and port).",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    session_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="A worker that gives no sign of life for this long is lost (15 s).",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    heartbeat_interval: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Time between two signs of life (2 s).",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    rebalance_delay: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="What a lost worker ran moves to others after this long (30 s).",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    fence_after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="A worker that cannot read or write its log for this long stops all that it runs"
            " (18 s).",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder of the worker's sockets and scratch files (connect-data).",
        ),
    ] = None,
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            "--plugins",
            metavar="MODULE",
            help="Module with plugins, besides installed packages; repeatable.",
        ),
    ] = None,
    plugin_path: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="Folder that plugins are imported from first; repeatable."
        ),
    ] = None,
    memory_mb: Annotated[
        int | None, typer.Option(min=1, metavar="MB", help="Memory that one task may use.")
    ] = None,
    share_hosts: Annotated[
        bool,
        typer.Option(
            "--share-hosts",
            help="Have all connectors of a class share one process; tasks have their own.",
        ),
    ] = False,
    master: Annotated[str, typer.Option(metavar="MASTER", help="Where Spark runs.")] = "local[2,4]",
    graceful_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Time that a task has for its stop() before it is cancelled (5 s).",
            rich_help_panel=_TIMES,
        ),
    ] = None,
    start_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Time that start() may take (3 min).", rich_help_panel=_TIMES
        ),
    ] = None,
    call_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Time that a plugin has to answer a question (10 s).",
            rich_help_panel=_TIMES,
        ),
    ] = None,
) -> None:
    """Run a worker with its connectors, until Ctrl-C or SIGTERM; a second one hurries it."""
    given = {
        "host": host,
        "port": port,
        "token": token,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "group": group,
        "worker_id": worker_id,
        "session_timeout": session_timeout,
        "heartbeat_interval": heartbeat_interval,
        "rebalance_delay": rebalance_delay,
        "fence_after": fence_after,
        "data": data,
        "memory_mb": memory_mb,
        "share_hosts": share_hosts or None,
        "plugins": tuple(plugins or ()),
        "cors_origins": tuple(cors_origins or ()),
        "allow_env": tuple(allow_env or ()),
        "allow_file": tuple(file.absolute() for file in allow_file or ()),
        "allow_function": tuple(allow_function or ()),
        "allow_anyone": allow_anyone or None,
        "graceful_timeout": graceful_timeout,
        "start_timeout": start_timeout,
        "call_timeout": call_timeout,
    }
    # What is missing is said before anything is started.
    require_packages("prometheus_client", "starlette", "uvicorn")
    settings = _settings(given)
    _refuse_old_log(settings.data / "log" / "connect.log")
    jobs = settings_from()
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=form, level="WARNING")
    logging.getLogger("headrace.connect").setLevel(logging.INFO)
    folders = tuple(str(folder.absolute()) for folder in plugin_path or ())
    place = _WorkPlace(folders, replace(jobs, master=master))
    asyncio.run(_work(settings, place))


def _settings(given: dict[str, Any]) -> WorkerSettings:
    from headrace.connect.worker import WorkerSettings

    return WorkerSettings(**{name: one for name, one in given.items() if one is not None})


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
    """Let a signal end the start; once the worker runs, it hears the signals itself."""
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
            files=list(map(str, settings.allow_file)),
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
