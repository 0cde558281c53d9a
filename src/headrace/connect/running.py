"""A worker from its start to its end: membership, units and REST API in one place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.connect.rest import RestServer
from headrace.connect.worker import Connect, Launcher, PositionStore, Worker, WorkerSettings
from headrace.private import owners_folder

if TYPE_CHECKING:
    from headrace.client import AsyncClient
    from headrace.connect.coordination import Cluster


logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: A broker holds back a pull of the log that finds nothing for so long.
_PULL_WAIT = timedelta(seconds=5)
#: The file that names the worker whose folder it is.
_MARK = "worker-id"


class RunningWorker:
    """A worker that runs, with its REST API.

    Parameters
    ----------
    connect
        What can be asked of it.
    url
        Where REST is.
    """

    def __init__(self, connect: Connect, url: str) -> None:
        self.connect = connect
        self.url = url
        #: The error that has ended a part of it, and the worker with it.
        self.failure: BaseException | None = None
        self._asked = asyncio.Event()
        self._hurried = asyncio.Event()

    def stop(self) -> None:
        """Ask everything that the worker runs to stop; a second call kills what is left."""
        if self._asked.is_set():
            logger.warning("asked to end a second time: what still runs is killed")
            self._hurried.set()
        self._asked.set()

    def fail(self, error: BaseException) -> None:
        """End the worker, as a part of it has ended with an error."""
        self.failure = self.failure or error
        self._asked.set()

    async def until_asked(self) -> None:
        """Wait until somebody wants it to end, or a part of it has ended with an error."""
        await self._asked.wait()

    async def end(self) -> None:
        """Stop all that it runs; REST answers meanwhile, but takes no changes."""
        worker = self.connect.worker
        stopping = asyncio.ensure_future(worker.stop())
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait([stopping, hurried], return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done():
                await worker.stop(force=True)
            await stopping
        finally:
            hurried.cancel()


@contextlib.asynccontextmanager
async def joined_cluster(client: AsyncClient, settings: WorkerSettings) -> AsyncIterator[Cluster]:
    """Join the cluster of workers that the settings name, until the block is left.

    Parameters
    ----------
    client
        Connection to the cluster of brokers.
    settings
        How the worker runs that joins.

    Raises
    ------
    WorkerIdTakenError
        A worker of this name is alive.
    ConnectError
        The topic of the group cannot hold a log.
    """
    from headrace.connect.coordination import Cluster, ClusterTimes

    times = ClusterTimes(
        delay=settings.rebalance_delay,
        session=settings.session_timeout,
        heartbeat=settings.heartbeat_interval,
        purge_after=settings.purge_after,
        pull_wait=min(_PULL_WAIT, settings.fence_after / 6),
    )
    cluster = await Cluster.join(client, settings.group, settings.name, times)
    try:
        yield cluster
    finally:
        await cluster.leave()


def _is_heir(settings: WorkerSettings) -> bool:
    """Return whether this folder was this worker's in its last life.

    What an earlier worker has left in a folder is ended before the next one begins there.
    """
    mark = settings.data / _MARK
    return mark.exists() and mark.read_text() == _name_in(settings)


def _inherit(settings: WorkerSettings) -> None:
    """Note that this worker has its folder from now on."""
    owners_folder(settings.data)
    (settings.data / _MARK).write_text(_name_in(settings))


def _name_in(settings: WorkerSettings) -> str:
    return f"{settings.group}/{settings.name}"


@contextlib.asynccontextmanager
async def running_worker(
    settings: WorkerSettings,
    launcher: Launcher,
    cluster: Cluster,
    *,
    positions: PositionStore | None = None,
    server: RestServer | None = None,
) -> AsyncIterator[RunningWorker]:
    """Run a worker until the block is left; then all that it runs is stopped.

    REST answers from the start: ``/readyz`` says what is done until the log is read.

    Parameters
    ----------
    settings
        How it runs.
    launcher
        Starts processes; it is closed at the end.
    cluster
        The cluster of workers that it has joined; whoever joined leaves it, when the block is left.
    positions
        Where connectors are in what they read; without, REST has no offsets.
    server
        Answers already, while the worker's surroundings start; by default one is made.

    Raises
    ------
    ConfigurationError
        The port is taken, or the certificate cannot be used.
    BaseException
        What has ended a part of the worker, and the worker with it.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(launcher.close)
        if server is None:
            server = await stack.enter_async_context(RestServer(settings))
        worker = Worker(
            *(cluster.log, launcher, settings, cluster.join_again),
            heir=_is_heir(settings),
            startup=server.startup,
        )
        connect = Connect(worker, positions)
        server.serve(connect)
        stack.callback(server.rest)
        running = RunningWorker(connect, server.url)
        worker.on_failure = server.on_failure = running.fail
        cluster.watch(running.fail)
        try:
            await connect.worker.start()
            _inherit(settings)
            logger.info("worker %s runs", connect.worker.name)
            yield running
        finally:
            await running.end()
            logger.info("worker %s has stopped all that it ran", connect.worker.name)
        if running.failure is not None:
            raise running.failure


async def serve(
    settings: WorkerSettings,
    launcher: Launcher,
    cluster: Cluster,
    *,
    positions: PositionStore | None = None,
    server: RestServer | None = None,
    ready: Callable[[RunningWorker], None] | None = None,
) -> None:
    """Run a worker until SIGTERM or SIGINT; a second signal kills what does not stop.

    Caller: the main thread of a process.

    Parameters
    ----------
    settings, launcher, cluster, positions, server
        As of `running_worker`.
    ready
        Called once the worker has read its log and takes requests.
    """
    async with running_worker(
        settings, launcher, cluster, positions=positions, server=server
    ) as running:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, running.stop)
        if ready is not None:
            ready(running)
        try:
            await running.until_asked()
            await running.end()
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
