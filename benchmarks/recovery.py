"""From the SIGKILL of a process of a running job to the first commit that follows from it.

The job has a million keys of state and a steady stream of lines; ``headrace run`` supervises it, as
it does for people, but where the next driver is to be on another machine.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.clusters import embedded, real
from benchmarks.lines import spread
from benchmarks.measures import Plan, Runs, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE
from benchmarks.workers import workers_of
from headrace.client import Admin, Client, JobStanding
from headrace.errors import TopicNotFoundError
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.state.home import StateHome

__all__ = [
    "recovery_apart",
    "recovery_cold",
    "recovery_on_rocketmq",
    "recovery_resident",
    "recovery_resident_standby",
    "recovery_standby",
    "recovery_worker",
]

_PROGRAM = """
from headrace import StreamBuilder, serdes

builder = StreamBuilder("recovery")
(
    builder.source("lines", serdes.string)
    .flat_map_values(lambda line: line.split())
    .key_by(lambda word: word)
    .count()
    .sink("counts", serdes.json)
)
topology = builder.build()
"""
#: Runs a command as on a machine of its own: nobody there can see that a process here has ended.
_ELSEWHERE = """
import sys
import uuid

from headrace.cli.app import main
from headrace.runtime.commit import drivers

machine = str(uuid.uuid4())
drivers._boot = lambda: machine
sys.exit(main())
"""
_RESIDENT = "--executor", "resident"
_LOOK = 0.02
#: Lines of the steady stream: so many at a time, so often.
_LINES, _PAUSE = 20, 0.1
#: A batch that runs at the time of the kill may still be committed; the one after it is not.
_DOUBTFUL = 1


@benchmark({"recovery_driver": "s"})
def recovery_cold(plan: Plan) -> Runs:
    """SIGKILL of the driver; the supervisor starts another one."""
    with _running_job(plan) as job:
        for _ in range(plan.runs):
            yield {"recovery_driver": job.recovery_of_driver()}


@benchmark({"recovery_driver_standby": "s"})
def recovery_standby(plan: Plan) -> Runs:
    """The same with a warm standby."""
    with _running_job(plan, "--standby") as job:
        for run in range(1, plan.runs + 1):
            job.await_said("Standing by", run)
            yield {"recovery_driver_standby": job.recovery_of_driver()}


@benchmark({"rocketmq_recovery_driver": "s"}, peers=True)
def recovery_on_rocketmq(plan: Plan) -> Runs:
    """The same as the first on a real RocketMQ."""
    with _running_job(plan, cluster=_rocketmq) as job:
        for _ in range(plan.runs):
            yield {"rocketmq_recovery_driver": job.recovery_of_driver()}


@benchmark({"rocketmq_recovery_driver_apart": "s"}, peers=True)
def recovery_apart(plan: Plan) -> Runs:
    """The same where each driver is on another machine than the one before it."""
    with _running_job(plan, cluster=_rocketmq, elsewhere=True) as job:
        for _ in range(plan.runs):
            yield {"rocketmq_recovery_driver_apart": job.recovery_of_driver()}


@benchmark({"recovery_worker": "s", "recovery_planner": "s"})
def recovery_worker(plan: Plan) -> Runs:
    """SIGKILL of all Python workers that run tasks; then of the one that plans batches."""
    with _running_job(plan) as job:
        for _ in range(plan.runs):
            yield {
                "recovery_worker": job.recovery_of("pyspark.worker"),
                "recovery_planner": job.recovery_of("python_streaming_source_runner"),
            }


@benchmark({"resident_recovery_worker": "s"})
def recovery_resident(plan: Plan) -> Runs:
    """SIGKILL of one resident task."""
    with _running_job(plan, *_RESIDENT) as job:
        for _ in range(plan.runs):
            yield {"resident_recovery_worker": job.recovery_of_a_task()}


@benchmark({"resident_recovery_driver_standby": "s"})
def recovery_resident_standby(plan: Plan) -> Runs:
    """SIGKILL of the driver of resident tasks, with a warm standby."""
    with _running_job(plan, "--standby", *_RESIDENT) as job:
        for run in range(1, plan.runs + 1):
            job.await_said("Standing by", run)
            yield {"resident_recovery_driver_standby": job.recovery_of_driver()}


class _Job:
    """A job under ``headrace run``."""

    def __init__(self, client: Client, command: _Command, patience: timedelta) -> None:
        self._home = StateHome.of("recovery", client)
        self._client, self._admin = client, Admin(client)
        self._command = command
        self._patience = patience.total_seconds()

    def keys(self) -> int:
        """How many keys its state has."""
        assert self._command.process.poll() is None, "headrace run has ended"
        try:
            record = self._home.transactions.plan([], {}, 0, 0).record
        except TopicNotFoundError:
            record = None
        return 0 if record is None else sum(state.count for state in record.states)

    def record(self) -> CommitRecord:
        """Its newest record."""
        return self._home.record()

    def await_true(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + self._patience
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {self._patience} s")
            time.sleep(_LOOK)

    def await_said(self, text: str, times: int) -> None:
        """Wait until the command has printed something so many times."""
        self.await_true(text, lambda: self._command.log.read_text().count(text) >= times)

    def await_batches(self, count: int) -> None:
        """Wait until so many more batches are committed."""
        wanted = self.record().batch + count
        self.await_true(f"batch {wanted}", lambda: self.record().batch >= wanted)

    def recovery_of_driver(self) -> float:
        """Kill the driver; give the time to the first commit of the next one."""
        self.await_batches(5)
        epoch = self.record().epoch
        begin = time.monotonic()
        os.kill(self._driver(), signal.SIGKILL)
        self._command.replace()
        self.await_true(
            "a commit of the next driver",
            lambda: self.record().epoch > epoch and self.record().kind == "commit",
        )
        return time.monotonic() - begin

    def recovery_of(self, module: str) -> float:
        """Kill the workers that run a module; give the time to a commit that was planned since."""
        self.await_batches(5)
        workers = workers_of(self._driver(), module)
        assert workers, f"no worker runs {module}"
        return self._recovery(workers)

    def recovery_of_a_task(self) -> float:
        """Kill one task and not what it was forked from; give the time as :meth:`recovery_of`."""
        self.await_batches(5)
        daemons = workers_of(self._driver())
        tasks = [task for daemon in daemons for task in workers_of(daemon)]
        return self._recovery({max(tasks)})

    def _recovery(self, killed: set[int]) -> float:
        begin = time.monotonic()
        for worker in killed:
            os.kill(worker, signal.SIGKILL)
        self.await_batches(1 + _DOUBTFUL)
        return time.monotonic() - begin

    def _driver(self) -> int:
        names = [self.record().driver, *(job.driver for job in self._jobs())]
        found = re.search(r":(\d+)", next(filter(None, names), ""))
        assert found is not None, "a job that runs has a driver"
        return int(found[1])

    def _jobs(self) -> list[JobStanding]:
        return self._admin.jobs() if self._client.is_headrace() else []


class _Command:
    """``headrace run``, supervised, or started anew elsewhere by those who look after machines."""

    def __init__(
        self, address: str, folder: Path, switches: Sequence[str], *, elsewhere: bool
    ) -> None:
        self.log = folder / "run.log"
        self._folder = folder
        self._program = folder / "program.py"
        self._program.write_text(_PROGRAM)
        self._switches = ["--namesrv", address, *switches]
        self._elsewhere = elsewhere
        self._number = 0
        self.process = self._start()

    def replace(self) -> None:
        """See to it that there will be another driver: a supervisor does so by itself."""
        if self._elsewhere:
            self.process.wait()
            self._number += 1
            self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        program = ["-c", _ELSEWHERE] if self._elsewhere else ["-m", "headrace"]
        plain = ["--no-supervise"] if self._elsewhere else []
        folder = self._folder / f"job-{self._number}"
        options = [*self._switches, *plain, "--data-dir", str(folder)]
        with self.log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *program, "run", str(self._program), *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )


@contextmanager
def _running_job(
    plan: Plan,
    *switches: str,
    cluster: Callable[[], AbstractContextManager[tuple[str, Path]]] = embedded,
    elsewhere: bool = False,
) -> Iterator[_Job]:
    sizes = plan.sizes
    with cluster() as (address, folder), Client(address) as client:
        for topic in ("lines", "counts"):
            Admin(client).create_topic(topic, queues=QUEUES)
        spread(client, "lines", _all_words(sizes.restored_keys))
        command = _Command(address, folder, switches, elsewhere=elsewhere)
        try:
            with _steady_lines(address, sizes.restored_keys):
                job = _Job(client, command, sizes.patience)
                job.await_true("the state", lambda: job.keys() >= sizes.restored_keys)
                yield job
        finally:
            command.process.terminate()
            command.process.wait(60)


@contextmanager
def _rocketmq() -> Iterator[tuple[str, Path]]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, real() as address:
        yield address, Path(folder)


def _all_words(keys: int) -> Iterator[pa.BinaryArray]:
    """Make lines that hold every word once."""
    words = np.arange(keys).reshape(-1, WORDS_PER_LINE)
    for part in np.array_split(words, 10):
        yield _lines(part)


def _lines(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> pa.BinaryArray:
    columns = [
        pc.binary_join_element_wise("word", pa.array(column).cast(pa.string()), "")
        for column in numbers.T
    ]
    return pc.binary_join_element_wise(*columns, " ").cast(pa.binary())


@contextmanager
def _steady_lines(address: str, keys: int) -> Iterator[None]:
    """Send lines of random words until the context ends."""
    over = threading.Event()
    random = np.random.default_rng(42)

    def send() -> None:
        with Client(address) as client:
            while not over.wait(_PAUSE):
                spread(client, "lines", iter([_lines(random.integers(0, keys, (_LINES, 5)))]))

    thread = threading.Thread(target=send, name="steady-lines")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
