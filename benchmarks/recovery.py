"""From the SIGKILL of a process of a running job to the first commit that follows from it.

The job has a million keys of state and a steady stream of lines; ``headrace run`` supervises it, as
it does for people.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.clusters import embedded
from benchmarks.lines import spread
from benchmarks.measures import Plan, Runs, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE
from benchmarks.workers import workers_of
from headrace.client import Admin, Client, JobStanding
from headrace.protocol.transactions import CommitRecord

__all__ = ["recovery_cold", "recovery_standby", "recovery_worker"]

_PROGRAM = """
from headrace import StreamBuilder, serdes

builder = StreamBuilder("recovery")
(
    builder.source("lines", serdes.string)
    .flat_map_values(lambda line: line.split())
    .key_by(lambda word: word)
    .count()
    .to_stream()
    .sink("counts", serdes.json)
)
topology = builder.build()
"""
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


@benchmark({"recovery_worker": "s", "recovery_planner": "s"})
def recovery_worker(plan: Plan) -> Runs:
    """SIGKILL of all Python workers that run tasks; then of the one that plans batches."""
    with _running_job(plan) as job:
        for _ in range(plan.runs):
            yield {
                "recovery_worker": job.recovery_of("pyspark.worker"),
                "recovery_planner": job.recovery_of("python_streaming_source_runner"),
            }


class _Job:
    """A job under ``headrace run``."""

    def __init__(self, client: Client, log: Path, patience: timedelta) -> None:
        self._admin = Admin(client)
        self._log = log
        self._patience = patience.total_seconds()

    def standing(self) -> JobStanding | None:
        """Where the job stands."""
        return next(iter(self._admin.jobs()), None)

    def record(self) -> CommitRecord:
        """Its newest record."""
        standing = self.standing()
        assert standing is not None, "the job has begun"
        return standing.record

    def await_true(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + self._patience
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not within {self._patience} s")
            time.sleep(_LOOK)

    def await_said(self, text: str, times: int) -> None:
        """Wait until the command has printed something so many times."""
        self.await_true(text, lambda: self._log.read_text().count(text) >= times)

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
        begin = time.monotonic()
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        self.await_batches(1 + _DOUBTFUL)
        return time.monotonic() - begin

    def _driver(self) -> int:
        standing = self.standing()
        found = re.search(r":(\d+)", "" if standing is None else standing.driver)
        assert found is not None, "a job that runs has a driver"
        return int(found[1])


@contextmanager
def _running_job(plan: Plan, *switches: str) -> Iterator[_Job]:
    sizes = plan.sizes
    with embedded() as (address, folder), Client(address) as client:
        for topic in ("lines", "counts"):
            Admin(client).create_topic(topic, queues=QUEUES)
        spread(client, "lines", _all_words(sizes.restored_keys))
        log = folder / "run.log"
        with (
            _command(address, folder, log, *switches) as process,
            _steady_lines(address, sizes.restored_keys),
        ):
            job = _Job(client, log, sizes.patience)
            job.await_true("the state", lambda: _keys(job, process) >= sizes.restored_keys)
            yield job


def _keys(job: _Job, process: subprocess.Popen[bytes]) -> int:
    assert process.poll() is None, "headrace run has ended"
    standing = job.standing()
    return 0 if standing is None else sum(state.count for state in standing.record.states)


@contextmanager
def _command(
    address: str, folder: Path, log: Path, *switches: str
) -> Iterator[subprocess.Popen[bytes]]:
    program = folder / "program.py"
    program.write_text(_PROGRAM)
    options = ["--namesrv", address, "--data-dir", str(folder / "job"), *switches]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "run", str(program), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


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
