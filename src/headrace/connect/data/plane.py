"""The data plane as a worker sees it: hosts whose tasks have a query in the engine."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec

from headrace.backoff import Backoff
from headrace.client import MessageQueue
from headrace.connect.channel import (
    AskPositions,
    CommitPositions,
    Forget,
    Hold,
    QueryEvent,
    StartQuery,
    StopQuery,
    TaskCopy,
)
from headrace.connect.data.positions import EngineSettings
from headrace.connect.data.process import EngineProcess
from headrace.connect.lifecycle import (
    Exited,
    Failed,
    HostEvent,
    Interrupted,
    Listens,
    Moved,
    SeekAsked,
    Started,
    WaitsFor,
)
from headrace.connect.records import position_key
from headrace.connect.worker.launching import HostSpec, Listener, PluginAnswer, PluginCall
from headrace.connect.worker.reporting import OffsetEntry
from headrace.errors import EngineAwayError, JobFailedError
from headrace.settings import JobSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.connect.hosts.launcher import ProcessLauncher
    from headrace.connect.hosts.process_host import HostedUnit


# A task as a worker sees it: a host, and a query that feeds it or takes what it gives.

#: A task's query has so long to end in order before its host is asked to stop all the same, s.
_DRAINING = 2.0
#: And so long to end after its host, s; the commit protocol refuses what it tries after that.
_ENDING = 10.0
#: A query that cannot begin is begun again after so long, then twice as long, and so on, s.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
#: A host that has failed itself says so within so long after its query, s.
_FIRST_WORD = 0.5


class QueryTask:
    """A task's host with its query.

    Parameters
    ----------
    plane
        Has the engine.
    spec
        What runs.
    listener
        Hears of it.
    """

    def __init__(self, plane: DataPlane, spec: HostSpec, listener: Listener) -> None:
        assert spec.task is not None
        self.spec = spec
        self.unit = TaskCopy(spec.connector, spec.task, spec.generation)
        self._plane = plane
        self._listener = listener
        #: What the host said when its query could begin.
        self._said: Listens | Started | None = None
        self._ending = False
        #: Set unless its query is about to begin.
        self._settled = asyncio.Event()
        self._settled.set()
        #: What the host waits for, and what the query does.
        self._host_waits = self._query_waits = ""
        self._paused = spec.paused
        self.host: HostedUnit

    def hear(self, event: HostEvent) -> None:
        """Pass on what the host says; that it has started only when its query runs.

        A source's query comes first: its task starts where the open record of the query's epoch
        has it.
        """
        match event:
            case Listens():
                self._said = event
                self._plane.spawn(self._begin_query())
                return
            case Started() if self.spec.role == "sink":
                self._said = event
                self._plane.spawn(self._begin(event))
                return
            case SeekAsked():
                self._plane.spawn(self._seek())
                return
            case Exited():
                self._plane.let_go(self)
                self._plane.spawn(self._end(event))
                return
            case WaitsFor():
                self._host_waits = event.what
                self._tell_what_it_waits_for()
                return
            case Failed():
                self._ending = True
        self._listener(event)

    async def _end(self, event: Exited) -> None:
        """Pass the host's end on once its query is over: a successor's would meet it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.end_query(), _ENDING)
        self._listener(event)

    async def _begin(self, event: Started) -> None:
        if await self._begin_query():
            self._listener(event)

    async def begin_again(self, problem: str = "") -> None:
        """Begin the query anew: it ended, or the engine with it, and the host did not."""
        if self._said is None or self._ending or not self._settled.is_set():
            return
        # From here on: what else ends meanwhile must not begin it a second time.
        self._settled.clear()
        if problem:
            self.waits(problem)
            await asyncio.sleep(_FIRST_PAUSE)
        await self._begin_query()

    async def _seek(self) -> None:
        """Begin the query anew: its task says where, and takes nothing of this one any more."""
        await self._settled.wait()
        with suppress(JobFailedError, TimeoutError):
            await self._plane.engine.ask(lambda number: StopQuery(number, self.unit))
        await self.begin_again()

    async def _begin_query(self) -> bool:
        """Have the query begin; while brokers are away, try again and again."""
        self._settled.clear()
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while not self._ending:
                try:
                    await self._plane.engine.ask(self._order)
                except EngineAwayError as error:
                    self.waits(str(error))
                    await asyncio.sleep(backoff.next())
                else:
                    break
            else:
                return False
        except (JobFailedError, TimeoutError) as error:
            self.fail(self.unit.failed(f"it could not be started: {error}"))
            return False
        finally:
            self._settled.set()
        return True

    def _order(self, number: int) -> StartQuery:
        """Return what begins, once the engine can hear it: nobody would end it if it began now."""
        if self._ending:
            raise JobFailedError("it was stopped before it began")
        assert self._said is not None
        return StartQuery(
            request=number,
            unit=self.unit,
            role=self.spec.role,
            address=self._said.address,
            terms=self._said.terms,
            tasks=self.spec.tasks,
            paused=self._paused,
            kept_as=self.spec.kept_as,
        )

    def waits(self, what: str) -> None:
        """Take note of what the task's query waits for; nothing: it goes on."""
        self._query_waits = what
        self._tell_what_it_waits_for()

    def _tell_what_it_waits_for(self) -> None:
        if not self._ending:
            self._listener(WaitsFor(self._host_waits or self._query_waits))

    async def query_failed(self, event: Failed) -> None:
        """Fail, as the query has; the host may know better why, so it has the first word."""
        await asyncio.sleep(_FIRST_WORD)
        self.fail(event)

    def fail(self, event: Failed) -> None:
        """End the task, as its query has ended for good."""
        if not self._ending:
            self._ending = True
            self._listener(event)

    async def end_query(self) -> None:
        """End the query, where there is one."""
        self._ending = True
        if self._said is not None:
            with suppress(JobFailedError, TimeoutError):
                await self._plane.engine.ask(lambda number: StopQuery(number, self.unit))

    # What a worker asks of a host.

    @property
    def pid(self) -> int:
        """Id of the host's process."""
        return self.host.pid

    def ask_stop(self) -> None:
        """End the query between two batches, then have the host stop."""
        self._plane.spawn(self._stop())

    async def _stop(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.end_query(), _DRAINING)
        self.host.ask_stop()

    def pause(self, *, paused: bool) -> None:
        """Begin no more batches, or go on; so does a query that begins anew."""
        self._paused = paused
        self.host.pause(paused=paused)
        self._plane.spawn(self._hold(held=paused))

    async def _hold(self, *, held: bool) -> None:
        if self._said is not None:
            with suppress(JobFailedError, TimeoutError):
                await self._plane.engine.ask(lambda number: Hold(number, self.unit, held))

    @property
    def waits_for(self) -> str:
        """What it waits for outside, as it said last; empty: nothing."""
        return self._host_waits

    async def task_configs(self) -> PluginAnswer | None:
        """Return nothing: a task has no tasks."""
        return None

    async def cancel(self) -> None:
        """End the query."""
        await self.end_query()

    def kill(self) -> None:
        """End the host and all that it forked, by SIGKILL."""
        self.host.kill()

    def alive(self) -> bool:
        """Whether anything is left of the host."""
        return self.host.alive()


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
        """Return what plugins may be in."""
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

    def _heard(self, heard: QueryEvent) -> None:
        task = self._running.get(heard.unit)
        if task is None:
            return
        match heard.event:
            case Moved() as event:
                task.hear(event)
            case WaitsFor(what=what):
                task.waits(what)
            case Interrupted(problem=problem):
                self.spawn(task.begin_again(problem))
            case Failed() as event:
                self.spawn(task.query_failed(event))

    def _engine_lost(self) -> None:
        logger.warning("the engine died; queries of %d tasks begin anew", len(self._running))
        for task in self._running.values():
            # Spark takes its time to start.
            task.waits("a new engine: the process of the last one has ended")
            self.spawn(task.begin_again())

    # The store of positions.

    async def _source_positions(
        self, kept_as: str
    ) -> Sequence[tuple[dict[str, Any], dict[str, Any]]]:
        """Return where a source connector is; a start may wait some time for its brokers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_PATIENCE
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                found = await self.engine.ask(lambda number: AskPositions(number, kept_as))
            except EngineAwayError:
                pause = backoff.next()
                if loop.time() + pause > deadline:
                    raise
                await asyncio.sleep(pause)
            else:
                return [(msgspec.json.decode(name), offset) for name, offset in found.items()]

    async def read(self, kept_as: str, config: Mapping[str, str]) -> Sequence[OffsetEntry]:
        """Return what is committed."""
        await self.engine.open()
        try:
            async with asyncio.timeout(_PATIENCE):
                found = await self.engine.ask(lambda number: AskPositions(number, kept_as))
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


_QUEUE = ("rocketmq_topic", "rocketmq_broker", "rocketmq_queue_id")
_OFFSET = "rocketmq_queue_offset"


def _entry(name: str, offset: Any) -> OffsetEntry:
    if isinstance(offset, int):
        queue = msgspec.structs.astuple(MessageQueue.parse(name))
        return OffsetEntry(dict(zip(_QUEUE, queue, strict=True)), {_OFFSET: offset})
    return OffsetEntry(msgspec.json.decode(name), offset)


def _committed(entry: OffsetEntry) -> tuple[str, Any]:
    partition, offset = entry.partition, entry.offset
    if _QUEUE[0] in partition:
        topic, broker, number = (partition[one] for one in _QUEUE)
        name = MessageQueue(topic, broker, number).name
        return name, None if offset is None else offset[_OFFSET]
    return position_key(partition).decode(), offset
