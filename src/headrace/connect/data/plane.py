"""The data plane as a worker sees it: hosts whose tasks have a query in the engine."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import msgspec
import orjson

from headrace.connect.data.orders import (
    Ask,
    Command,
    Commit,
    Ended,
    EngineEvent,
    Hold,
    Measured,
    Ready,
    Reply,
    Start,
    Stop,
    Unit,
)
from headrace.connect.worker.answers import OffsetEntry
from headrace.connect.worker.launching import (
    Cause,
    Exited,
    Failed,
    Figures,
    HostEvent,
    HostSpec,
    Moved,
    Started,
)
from headrace.errors import JobFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from headrace.connect.hosts.launcher import ProcessLauncher
    from headrace.connect.hosts.process_host import ProcessHost
    from headrace.connect.worker.launching import Listener, PluginAnswer, PluginCall

__all__ = ["DataPlane", "EngineProcess"]

logger = logging.getLogger(__name__)

_STARTING = timedelta(seconds=120)
#: A task's query has so long to end in order before its host is asked to stop all the same, s.
_DRAINING = 2.0
#: And so long to end after its host, s; the commit protocol refuses what it tries after that.
_ENDING = 10.0
#: Queues of a topic that a task makes, and the key of its config that says another number.
_QUEUES, _QUEUES_KEY = 4, "topic.creation.default.partitions"


class EngineProcess:
    """The engine's process, and what is asked of it.

    Parameters
    ----------
    namesrv
        Address of the cluster's name server.
    folder
        For scratch files and the log.
    master
        Where Spark runs.
    ended
        Hears of queries that ended by themselves.
    measured
        Hears what tasks have moved.
    lost
        Hears that the process died, and all queries with it.
    """

    def __init__(
        self,
        namesrv: str,
        folder: Path,
        ended: Callable[[Unit, str], None],
        measured: Callable[[Unit, Figures], None],
        lost: Callable[[], None],
        *,
        master: str = "local[2,4]",
        spark_config: Mapping[str, str] | None = None,
    ) -> None:
        self._namesrv = namesrv
        self._folder = folder
        self._master = master
        self._spark_config = dict(spark_config or {})
        self._ended = ended
        self._measured = measured
        self._lost = lost
        self._closing = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ready: asyncio.Future[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Id of the process, while there is one."""
        return None if self._process is None else self._process.pid

    async def open(self) -> None:
        """Start the process and wait until Spark runs; do nothing where it does."""
        async with self._starting:
            if self._ready is None or self._ready.cancelled() or self._process is None:
                await self._begin()
        assert self._ready is not None
        await asyncio.wait_for(asyncio.shield(self._ready), _STARTING.total_seconds())

    async def _begin(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        command = [
            *(sys.executable, "-m", "headrace.connect.data.engine"),
            *("--channel", str(theirs.fileno()), "--namesrv", self._namesrv),
            *("--folder", str(self._folder), "--master", self._master),
            *("--spark-config", orjson.dumps(self._spark_config).decode()),
        ]
        self._ready = asyncio.get_running_loop().create_future()
        with theirs, (self._folder / "engine.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader), name="engine")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = msgspec.json.Decoder(EngineEvent)
        with suppress(ConnectionError):
            async for line in reader:
                self._hear(decoder.decode(line))
        self._gone()

    def _hear(self, event: EngineEvent) -> None:
        match event:
            case Ready() if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
            case Reply(request=request, value=value, problem=problem):
                waiting = self._waiting.pop(request, None)
                if waiting is None or waiting.done():
                    return
                if problem:
                    waiting.set_exception(JobFailedError(problem))
                else:
                    waiting.set_result(value)
            case Ended(unit=unit, problem=problem):
                self._ended(unit, problem)
            case Measured(unit=unit, figures=figures):
                self._measured(unit, figures)

    def _gone(self) -> None:
        log = self._folder / "engine.log"
        error = JobFailedError("the engine's process ended", hint=f"{log} tells more")
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            # Whoever waited may have been cancelled: then nobody needs to hear of it.
            self._ready.exception()
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.done():
                one.set_exception(error)
        self._ready = None
        if self._writer is not None:
            self._writer.close()
        if not self._closing:
            self._lost()

    async def ask(self, make: Callable[[int], Command]) -> Any:
        """Ask for something and wait until it is done.

        Raises
        ------
        JobFailedError
            It cannot be done, or the engine ended meanwhile.
        """
        await self.open()
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self._writer is not None
        self._writer.write(msgspec.json.encode(make(number)) + b"\n")
        return await answer

    async def close(self) -> None:
        """End the process and what it has started."""
        self._closing = True
        if self._process is None:
            return
        if self._writer is not None:
            self._writer.close()
            with suppress(ConnectionError):
                await self._writer.wait_closed()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 5.0)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading
        self._process = None


class _Task:
    """A task's host with its query."""

    def __init__(self, plane: DataPlane, spec: HostSpec, listener: Listener) -> None:
        assert spec.task is not None
        self.spec = spec
        self.unit = Unit(spec.connector, spec.task, spec.generation)
        self._plane = plane
        self._listener = listener
        #: Where the host listens, once it has started.
        self._address = ""
        self._ending = False
        self.host: ProcessHost

    def hear(self, event: HostEvent) -> None:
        """Pass on what the host says; that it has started only when its query runs."""
        match event:
            case Started(address=address):
                self._plane.spawn(self._begin(address))
                return
            case Exited():
                self._plane.forget(self)
                self._plane.spawn(self._end(event))
                return
        self._listener(event)

    async def _end(self, event: Exited) -> None:
        """Tell of the host's end once its query is over: a successor's would meet it."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.end_query(), _ENDING)
        self._listener(event)

    async def _begin(self, address: str) -> None:
        self._address = address
        if await self._begin_query():
            self._listener(Started(address))

    async def begin_again(self) -> None:
        """Begin the query anew: the engine died with it, and the host did not."""
        if self._address and not self._ending:
            await self._begin_query()

    async def _begin_query(self) -> bool:
        try:
            await self._plane.engine.ask(self._order)
        except (JobFailedError, TimeoutError) as error:
            self.fail(f"its query could not be started: {error}")
            return False
        return True

    def _order(self, number: int) -> Start:
        config = self.spec.config
        given = config.get("topics") or config.get("connect.topicnames") or ""
        topics = [topic.strip() for topic in given.split(",") if topic.strip()]
        sink = self.spec.role == "sink"
        queues = "errors.deadletterqueue.topic.queues" if sink else _QUEUES_KEY
        return Start(
            request=number,
            unit=self.unit,
            role=self.spec.role,
            address=self._address,
            topics=topics if sink else [],
            pattern=config.get("topics.regex", ""),
            letters=config.get("errors.deadletterqueue.topic.name", "") if sink else "",
            tasks=self.spec.tasks,
            queues=int(config.get(queues) or _QUEUES),
            paused=self.spec.paused,
        )

    def fail(self, problem: str) -> None:
        """The query has ended, and with it the task."""
        if not self._ending:
            self._ending = True
            self._listener(Failed(Cause(problem.partition("\n")[0], problem)))

    async def end_query(self) -> None:
        """End the query, where there is one."""
        self._ending = True
        if self._address:
            with suppress(JobFailedError, TimeoutError):
                await self._plane.engine.ask(lambda number: Stop(number, self.unit))

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
        """Begin no more batches, or go on."""
        self.host.pause(paused=paused)
        self._plane.spawn(self._hold(held=paused))

    async def _hold(self, *, held: bool) -> None:
        if self._address:
            with suppress(JobFailedError, TimeoutError):
                await self._plane.engine.ask(lambda number: Hold(number, self.unit, held))

    async def cancel(self) -> None:
        """End the query."""
        await self.end_query()

    def kill(self) -> None:
        """End the host and all that it forked, by SIGKILL."""
        self.host.kill()

    def alive(self) -> bool:
        """Whether anything is left of the host."""
        return self.host.alive()


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
        Where Spark runs.

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
    ) -> None:
        self._launcher = launcher
        launcher.use_positions(self._source_positions)
        self.engine = EngineProcess(
            namesrv,
            folder,
            self._query_ended,
            self._query_measured,
            self._engine_lost,
            master=master,
            spark_config=spark_config,
        )
        self._running: dict[Unit, _Task] = {}
        self._spawned: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.engine.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def launch(self, spec: HostSpec, listener: Listener) -> ProcessHost | _Task:
        """Start a host; a task's query follows when the task has started."""
        if spec.kind == "connector":
            return await self._launcher.launch(spec, listener)
        task = _Task(self, spec, listener)
        self._running[task.unit] = task
        try:
            task.host = await self._launcher.launch(spec, task.hear)
        except BaseException:
            self.forget(task)
            raise
        return task

    async def call(self, call: PluginCall) -> PluginAnswer:
        """Ask plugin code a question, in a process of its own."""
        return await self._launcher.call(call)

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

    def forget(self, task: _Task) -> None:
        """A task's host is gone."""
        self._running.pop(task.unit, None)

    def _query_ended(self, unit: Unit, problem: str) -> None:
        task = self._running.get(unit)
        if task is not None:
            task.fail(problem)

    def _query_measured(self, unit: Unit, figures: Figures) -> None:
        task = self._running.get(unit)
        if task is not None:
            task.hear(Moved(figures))

    def _engine_lost(self) -> None:
        logger.warning("the engine died; queries of %d tasks begin anew", len(self._running))
        for task in self._running.values():
            self.spawn(task.begin_again())

    # The store of positions.

    async def _source_positions(
        self, connector: str
    ) -> Sequence[tuple[dict[str, Any], dict[str, Any]]]:
        found = await self.engine.ask(lambda number: Ask(number, connector))
        return [(orjson.loads(name), offset) for name, offset in found.items()]

    async def read(self, connector: str, config: Mapping[str, str]) -> Sequence[OffsetEntry]:
        """Give what is committed."""
        del config
        found = await self.engine.ask(lambda number: Ask(number, connector))
        return [_entry(name, offset) for name, offset in sorted(found.items())]

    async def alter(
        self, connector: str, config: Mapping[str, str], entries: Sequence[OffsetEntry]
    ) -> None:
        """Commit other positions; the connector does not run."""
        del config
        changed = dict(map(_committed, entries))
        await self.engine.ask(lambda number: Commit(number, connector, changed))

    async def reset(self, connector: str, config: Mapping[str, str]) -> None:
        """Forget all positions; the connector does not run."""
        del config
        await self.engine.ask(lambda number: Commit(number, connector, reset=True))


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
