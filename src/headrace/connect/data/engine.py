"""The engine of a worker: one Spark application with a query per task.

It runs in a process of its own, ``python -m headrace.connect.data.engine``, beside the supervisor,
which tells it by lines of JSON what to run.  It runs no plugin: its workers carry columns between
the brokers and the hosts of the tasks.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import pickle
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.client import Client
from headrace.connect.channel import (
    AskPositions,
    ChildEnd,
    CommitPositions,
    EngineCommand,
    EngineMessage,
    Forget,
    Hold,
    Level,
    QueryEvent,
    Reply,
    Request,
    StartQuery,
    StopQuery,
    TaskCopy,
)
from headrace.connect.data.jobs import Measuring, TaskJob
from headrace.connect.data.positions import (
    EngineSettings,
    PositionChanges,
    forget_positions,
    read_positions,
)
from headrace.connect.levels import set_level
from headrace.connect.lifecycle import Cause, Interrupted, Started, WaitsFor
from headrace.errors import (
    BrokerError,
    ConnectionFailedError,
    HeadraceError,
    HostGoneError,
    JobFailedError,
    LeaseLostError,
    RequestTimeoutError,
    TaskFailedError,
)
from headrace.spark.session import get_session
from headrace.spark.ticks import Turns
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from collections.abc import Callable


#: It runs as ``__main__``, and is known by the name of its module all the same.
logger = logging.getLogger("headrace.connect.data.engine")

#: Queries that start at the same time.
_AT_ONCE = 8
#: Commands that are worked on: one may wait for the code of a task, which may hang.
_COMMANDS = 256
#: What tells of brokers, and not of a task.
_OF_BROKERS = (BrokerError, ConnectionFailedError, RequestTimeoutError, LeaseLostError)


class Engine:
    """Runs the jobs of tasks.

    Parameters
    ----------
    settings
        Where they run.
    tell
        Takes what the supervisor is to hear; called by any thread.
    """

    def __init__(self, settings: EngineSettings, tell: Callable[[EngineMessage], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._client = Client(settings.namesrv, settings.client_settings)
        self._runs: dict[TaskCopy, _TaskRun] = {}
        self._lock = threading.Lock()
        self._starting = threading.BoundedSemaphore(_AT_ONCE)
        self._turns = Turns(settings.cores)
        self._workers = ThreadPoolExecutor(_COMMANDS, thread_name_prefix="engine")
        self._measuring = Measuring(self._running, tell)

    def open(self) -> None:
        """Start Spark."""
        get_session(self._settings.job_settings())
        self._measuring.start()
        self._tell(Started())

    def take(self, command: EngineCommand) -> None:
        """Do what the supervisor asks, in a thread of its own.

        What runs is noted here, in the order of what is asked: a stop finds what any start before
        it has begun, and a second start begins nothing.
        """
        logger.debug("asked to %s", type(command).__name__.lower())
        if isinstance(command, Level):
            set_level(command.logger, command.level)
            return
        work: Callable[[], Any] = partial(self._do, command)
        with self._lock:
            match command:
                case StartQuery(unit=unit) if unit in self._runs:
                    work = _nothing
                case StartQuery(unit=unit):
                    run = self._runs[unit] = _TaskRun()
                    self._workers.submit(self._start, command, run)
                    return
                case Hold(unit=unit, held=held):
                    work = _nothing
                    if unit in self._runs:
                        self._runs[unit].hold(held=held)
                case StopQuery(unit=unit):
                    stopped = self._runs.pop(unit, None)
                    work = _nothing if stopped is None else stopped.stop()
        self._workers.submit(self._answer, command, work)

    def _answer(self, asked: Request, work: Callable[[], Any]) -> bool:
        """Do something and tell what came of it; return whether it was done."""
        try:
            reply = Reply(asked.request, work())
        except HeadraceError as error:
            cause = Cause(self._told(error))
            reply = Reply(asked.request, failure=cause, passes=_passes(error))
        except Exception as error:
            logger.exception("the engine could not do %s", type(asked).__name__)
            reply = Reply(asked.request, failure=Cause(f"{type(error).__name__}: {error}"))
        self._tell(reply)
        return reply.failure is None

    def _do(self, asked: Request) -> Any:
        match asked:
            case AskPositions(connector=connector):
                return read_positions(self._client, connector)
            case CommitPositions():
                self._change(asked)
            case Forget(connector=connector):
                forget_positions(self._client, connector)
        return None

    def _running(self) -> dict[TaskCopy, TaskJob]:
        with self._lock:
            return {unit: run.job for unit, run in self._runs.items() if run.job is not None}

    def _change(self, command: CommitPositions) -> None:
        changes = PositionChanges(self._client, command.connector, self._settings)
        changes.commit(command.positions, reset=command.reset)

    def _start(self, order: StartQuery, run: _TaskRun) -> None:
        """Begin a run; that it has begun is told before that it has ended."""
        if self._answer(order, partial(self._begin, order, run)):
            watched_thread(
                partial(self._watch, order.unit, run),
                name=f"end of {order.unit.connector}-{order.unit.task}",
                on_failure=partial(self._lose, order.unit, run),
            ).start()

    def _begin(self, order: StartQuery, run: _TaskRun) -> None:
        def waits(what: str) -> None:
            self._tell(QueryEvent(order.unit, WaitsFor(what)))

        try:
            job = TaskJob(order, self._client, self._settings, self._turns, waits)
            with self._lock:
                if run.stopped:
                    raise JobFailedError("it was stopped while it started")
                run.begins(job)
            with self._starting:
                job.start()
        except BaseException:
            self._forget(order.unit, run)
            raise

    def _watch(self, unit: TaskCopy, run: _TaskRun) -> None:
        job, problem, passes, unforeseen = run.job, "it ended", False, None
        assert job is not None, "what has begun has a job"
        try:
            job.await_end()
        except HeadraceError as error:
            problem, passes = self._told(error), _passes(error)
            unforeseen = None if passes else error.__cause__
        if self._forget(unit, run):
            with contextlib.suppress(HeadraceError):
                job.stop()
            told = "the query of %s ended: %s"
            logger.warning(told, job.name, problem, exc_info=unforeseen)
            self._tell(QueryEvent(unit, Interrupted(problem) if passes else unit.failed(problem)))

    def _lose(self, unit: TaskCopy, run: _TaskRun, error: BaseException) -> None:
        if self._forget(unit, run):
            unseen = unit.failed(f"its end was not seen: {type(error).__name__}: {error}")
            self._tell(QueryEvent(unit, unseen))

    def _forget(self, unit: TaskCopy, run: _TaskRun) -> bool:
        """Note that a run is over; return whether that is so without anybody having asked for it."""
        with self._lock:
            if self._runs.get(unit) is run:
                del self._runs[unit]
            return not run.stopped

    def _told(self, error: HeadraceError) -> str:
        """Return what failed, and on which cluster where that is what failed."""
        if isinstance(error, _OF_BROKERS) and not isinstance(error, HostGoneError):
            return f"the cluster at {self._settings.namesrv}: {error}"
        return str(error)


@dataclass(slots=True)
class _TaskRun:
    """One run of a task's job, from the moment that it is asked for."""

    #: None while the task opens its queues.
    job: TaskJob | None = None
    stopped: bool = False
    #: What was said last; None: nothing since it was asked for.
    held: bool | None = None

    def begins(self, job: TaskJob) -> None:
        """Note the job, which hears what was said before it was there."""
        self.job = job
        if self.held is not None:
            job.hold(held=self.held)

    def hold(self, *, held: bool) -> None:
        """Have it begin no more batches, or go on."""
        self.held = held
        if self.job is not None:
            self.job.hold(held=held)

    def stop(self) -> Callable[[], None]:
        """Note that it is to end; give what ends it."""
        self.stopped = True
        return _nothing if self.job is None else self.job.stop


def _nothing() -> None:
    """Do nothing: it is done already."""


def _passes(error: HeadraceError) -> bool:
    """Return whether a query that failed may go on later, by itself: brokers come back.

    What Spark gave up on is not among them: it may be a fault of ours, the same each time.
    """
    return error.retriable and not isinstance(error, TaskFailedError)


def main(arguments: list[str] | None = None) -> None:
    """Run the engine until the supervisor is gone."""
    parser = argparse.ArgumentParser(prog="headrace.connect.data.engine", description=__doc__)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of a socket")
    options = parser.parse_args(arguments)
    settings: EngineSettings = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own worker
    serve(settings, socket.socket(fileno=options.channel))


def serve(settings: EngineSettings, channel: socket.socket) -> NoReturn:
    """Do what the supervisor says at the other end of a channel, until it is gone."""
    worker = ChildEnd(channel, EngineCommand)
    engine = Engine(settings, worker.tell)
    engine.open()
    while True:
        engine.take(worker.hear())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()
