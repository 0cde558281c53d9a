"""``headrace connect worker``: runs a worker that stands alone, until it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli._cluster import DataDir, NameServer, cluster_address, settings_from
from headrace.cli._terminal import say
from headrace.cli.connect.rest import require_packages
from headrace.errors import JobFailedError

if TYPE_CHECKING:
    from headrace.connect.data import DataPlane
    from headrace.connect.running import RunningWorker
    from headrace.connect.worker import WorkerSettings
    from headrace.settings import JobSettings

__all__ = ["worker"]

_REST = "REST"
_TIMES = "Times"
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
    worker_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of this worker (host name and port).")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Folder of the worker's log, sockets and scratch files (connect-data).",
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
    namesrv: NameServer = None,
    data_dir: DataDir = None,
) -> None:
    """Run a worker with its connectors, until Ctrl-C or SIGTERM; a second one hurries it."""
    from headrace.java import find_java

    given = {
        "host": host,
        "port": port,
        "token": token,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "worker_id": worker_id,
        "data": data,
        "memory_mb": memory_mb,
        "plugins": tuple(plugins or ()),
        "cors_origins": tuple(cors_origins or ()),
        "graceful_timeout": graceful_timeout,
        "start_timeout": start_timeout,
        "call_timeout": call_timeout,
    }
    # What is missing is said before anything is started.
    require_packages("prometheus_client", "starlette", "uvicorn")
    settings = _settings(given)
    jobs = settings_from(namesrv, data_dir)
    find_java()
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=form, level="WARNING")
    logging.getLogger("headrace.connect").setLevel(logging.INFO)
    folders = tuple(str(folder.absolute()) for folder in plugin_path or ())
    with cluster_address(jobs) as address:
        asyncio.run(_work(settings, address, folders, replace(jobs, master=master)))


def _settings(given: dict[str, Any]) -> WorkerSettings:
    from headrace.connect.worker import WorkerSettings

    return WorkerSettings(**{name: one for name, one in given.items() if one is not None})


async def _work(
    settings: WorkerSettings, address: str, folders: tuple[str, ...], jobs: JobSettings
) -> None:
    """Run a worker on a cluster of brokers until it is asked to stop."""
    from headrace.connect.running import serve

    def tell(running: RunningWorker) -> None:
        sys.stdout.write(
            f"headrace connect worker listening on {running.url}, data in {settings.data}\n"
        )
        sys.stdout.flush()

    with _stoppable():
        async with _plane_of(settings, address, folders, jobs) as plane:
            await serve(settings, plane, positions=plane, ready=tell)


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


@contextlib.asynccontextmanager
async def _plane_of(
    settings: WorkerSettings, address: str, folders: tuple[str, ...], jobs: JobSettings
) -> AsyncIterator[DataPlane]:
    """Start the engine; take the folder first, which another worker may hold."""
    from headrace.connect.data import DataPlane
    from headrace.connect.hosts import HostSettings, ProcessLauncher

    hosts = HostSettings(
        call_timeout=settings.call_timeout.total_seconds(),
        folders=folders,
        modules=settings.plugins,
        warm=True,
    )
    engine = settings.data / "engine"
    async with contextlib.AsyncExitStack() as stack:
        launcher = await stack.enter_async_context(ProcessLauncher(settings.data / "hosts", hosts))
        plane = DataPlane(launcher, address, engine, master=jobs.master, jobs=jobs)
        stack.push_async_callback(plane.close)
        try:
            await plane.engine.open()
        except TimeoutError as error:
            raise JobFailedError(
                "Spark did not start in time", hint=f"{engine / 'engine.log'} tells why"
            ) from error
        yield plane
