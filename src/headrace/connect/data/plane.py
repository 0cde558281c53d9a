"""The data plane as a worker sees it: hosts whose tasks have a query in the engine."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Self

import msgspec
import orjson

from headrace.connect.data.process import (
    Ask,
    CommitPositions,
    Ended,
    EngineProcess,
    Forget,
    Measured,
    QueryWaits,
    TaskCopy,
)
from headrace.connect.data.settings import EngineSettings
from headrace.connect.data.tasks import QueryTask, pauses
from headrace.connect.worker.launching import Moved, PluginCall
from headrace.connect.worker.reporting import OffsetEntry
from headrace.errors import EngineAwayError
from headrace.settings import JobSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.connect.hosts.launcher import ProcessLauncher
    from headrace.connect.hosts.process_host import HostedUnit
    from headrace.connect.worker.launching import HostSpec, Listener, PluginAnswer

__all__ = ["DataPlane"]

logger = logging.getLogger(__name__)

#: Who asks where a connector is gets an answer within so long, s.
_PATIENCE = 20.0
#: A source connector that starts waits so long for brokers that are away, s.
_START_PATIENCE = 60.0


class DataPlane:
    """A launcher whose tasks move data, and the store of their positions.

    Parameters
    ----------
    launcher
        Makes the processes of plugins.
    namesrv
        Address of the cluster's name server.
    folder
        For the engine's scratch files and log.
    master
        Where Spark runs: on this machine.
    jobs
        How the cluster is reached (accounts, TLS, time limits), and how much a batch reads.

    Examples
    --------
    ::

        launcher = ProcessLauncher(folder / "hosts")
        async with DataPlane(launcher, "127.0.0.1:9876", folder / "engine") as plane:
            worker = Worker(settings, log, plane)
            connect = Connect(worker, plane)
    """

    def __init__(
        self,
        launcher: ProcessLauncher,
        namesrv: str,
        folder: Path,
        *,
        master: str = "local[2,4]",
        spark_config: Mapping[str, str] | None = None,
        jobs: JobSettings | None = None,
    ) -> None:
        self._launcher = launcher
        launcher.use_positions(self._source_positions)
        settings = EngineSettings(
            namesrv=namesrv,
            folder=folder,
            master=master,
            spark_config=dict(spark_config or {}),
            jobs=jobs or JobSettings(),
        )
        self.engine = EngineProcess(settings, self._heard, self._engine_lost)
        self._running: dict[TaskCopy, QueryTask] = {}
        self._spawned: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.engine.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def launch(self, spec: HostSpec, listener: Listener) -> HostedUnit | QueryTask:
        """Start a host; its query opens an epoch, and a source's task starts behind that."""
        if spec.kind == "connector":
            return await self._launcher.launch(spec, listener)
        task = QueryTask(self, spec, listener)
        self._running[task.unit] = task
        try:
            task.host = await self._launcher.launch(spec, task.hear)
        except BaseException:
            self.let_go(task)
            raise
        return task

    async def call(self, call: PluginCall) -> PluginAnswer:
        """Ask plugin code a question, in a process of its own."""
        return await self._launcher.call(call)

    def set_level(self, logger: str, level: int) -> None:
        """Set the level of a logger, and of those below it, in hosts and engine."""
        self._launcher.set_level(logger, level)
        self.engine.set_level(logger, level)

    def installed(self) -> object:
        """Tell what plugins may be in."""
        return self._launcher.installed()

    def live_until(self, time: float) -> None:
        """End all hosts at that time, unless a later one is told before."""
        self._launcher.live_until(time)

    async def close(self) -> None:
        """End all queries, hosts and the engine."""
        await self._launcher.close()
        for task in self._spawned:
            task.cancel()
        await asyncio.gather(*self._spawned, return_exceptions=True)
        await self.engine.close()

    def spawn(self, work: Any) -> None:
        """Do something in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    def let_go(self, task: QueryTask) -> None:
        """A task's host is gone."""
        self._running.pop(task.unit, None)

    def _heard(self, event: Ended | Measured | QueryWaits) -> None:
        task = self._running.get(event.unit)
        if task is None:
            return
        match event:
            case Measured(figures=figures):
                task.hear(Moved(figures))
            case QueryWaits(what=what):
                task.waits(what)
            case Ended(problem=problem, passes=True):
                self.spawn(task.begin_again(problem))
            case Ended(problem=problem):
                self.spawn(task.query_failed(problem))

    def _engine_lost(self) -> None:
        logger.warning("the engine died; queries of %d tasks begin anew", len(self._running))
        for task in self._running.values():
            self.spawn(task.begin_again())

    # The store of positions.

    async def _source_positions(
        self, kept_as: str
    ) -> Sequence[tuple[dict[str, Any], dict[str, Any]]]:
        """Give where a source connector is; a start may wait some time for its brokers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_PATIENCE
        for pause in pauses():
            try:
                found = await self.engine.ask(lambda number: Ask(number, kept_as))
            except EngineAwayError:
                if loop.time() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
            else:
                return [(orjson.loads(name), offset) for name, offset in found.items()]
        raise AssertionError("pauses have no end")

    async def read(self, kept_as: str, config: Mapping[str, str]) -> Sequence[OffsetEntry]:
        """Give what is committed."""
        await self.engine.open()
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await self.engine.ask(lambda number: Ask(number, kept_as))
        except TimeoutError:
            name = config.get("name", kept_as)
            raise EngineAwayError(
                f"where connector '{name}' is could not be read within {_PATIENCE:g} s",
                hint="are the brokers away? Try again later",
            ) from None
        return [_entry(name, offset) for name, offset in sorted(found.items())]

    async def alter(
        self, kept_as: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> None:
        """Commit other positions; the connector does not run."""
        del config
        changed = dict(map(_committed, entries))
        await self.engine.ask(lambda number: CommitPositions(number, kept_as, changed))

    async def reset(self, kept_as: str, config: Mapping[str, str]) -> None:
        """Forget all positions; the connector does not run."""
        del config
        await self.engine.ask(lambda number: CommitPositions(number, kept_as, reset=True))

    async def forget(self, kept_as: str, config: Mapping[str, str]) -> None:
        """Remove the positions that are kept under a name, also those that are kept outside.

        A connector whose own code does not take back what it keeps outside is not asked twice.
        """
        known = await self.read(kept_as, config)
        if known and config:
            forgotten = [OffsetEntry(one.partition, None) for one in known]
            call = PluginCall(
                what="alter_offsets",
                connector_class=config["connector.class"],
                config=config,
                arguments={"offsets": [msgspec.to_builtins(one) for one in forgotten]},
            )
            answer = await self._launcher.call(call)
            if answer.failure is not None:
                logger.warning("what is kept outside may stay: %s", answer.failure.summary)
        await self.engine.ask(lambda number: Forget(number, kept_as))

    def drop_logs(self, connector: str) -> None:
        """Remove what the hosts of a connector have written."""
        self._launcher.drop_logs(connector)


_TOPIC, _BROKER, _QUEUE = "rocketmq_topic", "rocketmq_broker", "rocketmq_queue_id"
_OFFSET = "rocketmq_queue_offset"


def _entry(name: str, offset: Any) -> OffsetEntry:
    if isinstance(offset, int):
        topic, _, rest = name.partition("@")
        broker, _, number = rest.rpartition("@")
        return OffsetEntry({_TOPIC: topic, _BROKER: broker, _QUEUE: int(number)}, {_OFFSET: offset})
    return OffsetEntry(orjson.loads(name), offset)


def _committed(entry: OffsetEntry) -> tuple[str, Any]:
    partition, offset = entry.partition, entry.offset
    if _TOPIC in partition:
        name = f"{partition[_TOPIC]}@{partition[_BROKER]}@{partition[_QUEUE]}"
        return name, None if offset is None else offset[_OFFSET]
    return orjson.dumps(partition, option=orjson.OPT_SORT_KEYS).decode(), offset
