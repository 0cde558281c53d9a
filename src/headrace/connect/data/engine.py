"""The engine of a worker: one Spark application with a query per task.

It runs in a process of its own, ``python -m headrace.connect.data.engine``, beside the supervisor,
which tells it by lines of JSON what to run.  It runs no plugin: its workers carry columns between
the brokers and the hosts of the tasks.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.client import Client
from headrace.connect.data.jobs import EngineSettings, TaskJob
from headrace.connect.data.measuring import Measuring
from headrace.connect.data.orders import (
    Ask,
    Command,
    Commit,
    Ended,
    EngineEvent,
    Hold,
    Ready,
    Reply,
    Start,
    Stop,
    Unit,
)
from headrace.connect.data.positions import change_positions, read_positions
from headrace.errors import HeadraceError
from headrace.spark.session import get_session

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Engine", "main"]

logger = logging.getLogger(__name__)

#: Queries that start and stop at the same time.
_AT_ONCE = 8


class Engine:
    """Runs the jobs of tasks.

    Parameters
    ----------
    settings
        Where they run.
    tell
        Takes what the supervisor is to hear; called by any thread.
    """

    def __init__(self, settings: EngineSettings, tell: Callable[[EngineEvent], None]) -> None:
        self._settings = settings
        self._tell = tell
        self._client = Client(settings.namesrv)
        self._jobs: dict[Unit, TaskJob] = {}
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="engine")
        self._measuring = Measuring(self._running, tell)

    def open(self) -> None:
        """Start Spark."""
        get_session(self._settings.job_settings(exact=True))
        self._measuring.start()
        self._tell(Ready())

    def take(self, command: Command) -> None:
        """Do what the supervisor asks, in a thread of its own."""
        self._workers.submit(self._answer, command)

    def _answer(self, command: Command) -> None:
        try:
            value = self._do(command)
        except HeadraceError as error:
            self._tell(Reply(command.request, problem=str(error)))
        except Exception as error:
            logger.exception("the engine could not do %s", type(command).__name__)
            self._tell(Reply(command.request, problem=f"{type(error).__name__}: {error}"))
        else:
            self._tell(Reply(command.request, value))

    def _do(self, command: Command) -> Any:
        match command:
            case Start():
                self._start(command)
            case Stop(unit=unit):
                self._stop(unit)
            case Hold(unit=unit, held=held):
                with self._lock:
                    job = self._jobs.get(unit)
                if job is not None:
                    job.hold(held=held)
            case Ask(connector=connector):
                return read_positions(self._client, connector)
            case Commit():
                change_positions(
                    self._client, command.connector, command.positions, reset=command.reset
                )
        return None

    def _running(self) -> dict[Unit, TaskJob]:
        with self._lock:
            return dict(self._jobs)

    def _start(self, order: Start) -> None:
        job = TaskJob(order, self._client, self._settings)
        with self._lock:
            self._jobs[order.unit] = job
        try:
            job.start()
        except BaseException:
            with self._lock:
                self._jobs.pop(order.unit, None)
            raise
        watch = threading.Thread(
            target=self._watch, args=(order.unit, job), name=f"end of {job.name}", daemon=True
        )
        watch.start()

    def _watch(self, unit: Unit, job: TaskJob) -> None:
        problem = "its query ended"
        try:
            job.await_end()
        except HeadraceError as error:
            problem = str(error)
        with self._lock:
            asked = self._jobs.pop(unit, None) is None
        if not asked:
            with contextlib.suppress(HeadraceError):
                job.stop()
            self._tell(Ended(unit, problem))

    def _stop(self, unit: Unit) -> None:
        with self._lock:
            job = self._jobs.pop(unit, None)
        if job is not None:
            job.stop()


def main(arguments: list[str] | None = None) -> None:
    """Run the engine until the supervisor is gone."""
    parser = argparse.ArgumentParser(prog="headrace.connect.data.engine", description=__doc__)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of a socket")
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--spark-config", default="{}")
    options = parser.parse_args(arguments)
    channel = socket.socket(fileno=options.channel)
    telling = threading.Lock()
    encoder = msgspec.json.Encoder()

    def tell(event: EngineEvent) -> None:
        with telling, contextlib.suppress(OSError):
            channel.sendall(encoder.encode(event) + b"\n")

    settings = EngineSettings(
        namesrv=options.namesrv,
        folder=options.folder,
        master=options.master,
        spark_config=msgspec.json.decode(options.spark_config, type=dict[str, str]),
    )
    engine = Engine(settings, tell)
    engine.open()
    decoder = msgspec.json.Decoder(Command)
    with channel.makefile("rb") as lines:
        for line in lines:
            engine.take(decoder.decode(line))
    # The supervisor is gone, and so is who could be told; its successor starts another engine.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()
