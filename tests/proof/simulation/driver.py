"""A driver with its executors: the job's own source, stages and coordinator, step by step.

What Spark does is played here: it calls the source, hands rows from stage to stage, runs a task
that failed again, now and then twice, and starts a new executor where one has died.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.errors import FencedError, HeadraceError
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.blocks import Block
from headrace.runtime.job_plan import JobConnection, JobPlan
from headrace.runtime.sources.starts import starting_offsets
from headrace.runtime.state.checks import settled_record
from headrace.settings import JobSettings
from headrace.spark import worker
from headrace.spark.coordinator import assemble
from headrace.spark.rows import blocks_of, rows_of
from headrace.spark.source import JobReader, Launch
from headrace.spark.stages import StageFunction, stage_function
from headrace.spark.worker import PlanHandle
from headrace.topology import Topology
from tests.proof.simulation.disk import SimulatedDisk
from tests.proof.simulation.world import BEGIN, Killed, Process, World

_HANDLE = PlanHandle("simulated", b"")
_ATTEMPTS = 4
_RESTARTS = 8

Start = Callable[[str], Process]
"""Makes a process that is on the network."""


class _Attempts:
    """Stands in for Spark's task context."""

    numbers = itertools.count()

    @classmethod
    def get(cls) -> type[_Attempts]:
        return cls

    @classmethod
    def taskAttemptId(cls) -> int:  # noqa: N802 - Spark's name
        return next(cls.numbers)


class SimulatedDriver:
    """One driver, from its first request to its end.

    Parameters
    ----------
    world
        Where it runs.
    start
        Makes its processes.
    name
        Its name in the story.
    topology
        The job.
    machines
        Folder of each executor's machine.
    settings
        Of the job.
    disk
        Of all machines.
    embedded
        Whether the cluster is Headrace's own broker.
    """

    def __init__(
        self,
        world: World,
        start: Start,
        name: str,
        topology: Topology,
        machines: list[Path],
        settings: JobSettings,
        disk: SimulatedDisk,
        *,
        embedded: bool,
    ) -> None:
        self.name = name
        self.machines = machines
        self.process = start(name)
        self._start = start
        self._disk = disk
        self.executors = [self._executor(number) for number in range(len(machines))]
        self.plan = JobPlan(topology, settings, "10.0.0.1:9876", embedded=embedded)
        self.queues: dict[str, list[str]] = {}
        self._world = world
        self._attempts = itertools.count()
        self._record: CommitRecord | None = None
        self._epoch = 0

    @property
    def processes(self) -> list[Process]:
        """All of its processes."""
        return [self.process, *self.executors]

    def kill(self) -> None:
        """Kill the driver and all of its executors."""
        for process in self.processes:
            process.kill()

    def sleep(self, *, asleep: bool) -> None:
        """Put all of its processes to sleep, or wake them up."""
        for process in self.processes:
            if asleep:
                process.asleep = True
            else:
                process.wake()

    def steps(self) -> Generator[str, None, None]:
        """Run until the job is taken over; say what comes next before each step."""
        restarts = 0
        yield "connects"
        job = JobConnection(self.plan)
        while True:
            try:
                yield "opens"
                self._open(job)
                yield from self._run(job)
            except FencedError as error:
                self._world.tell(f"{self.name} ends: {error.message[:90]}")
                return
            except HeadraceError as error:
                restarts += 1
                self._world.tell(f"{self.name} goes on after: {str(error)[:90]}")
                if not error.retriable or restarts > _RESTARTS:
                    raise
                yield "pauses"
                self._world.pass_time(0.2 * restarts)

    def _open(self, job: JobConnection) -> None:
        answer = job.transactions.open(self.name)
        self._epoch = answer.epoch
        record = settled_record(job.state_home, answer.record, self.plan, {})
        offsets = starting_offsets(job, record, restarted=self._record is not None)
        self._record = msgspec.structs.replace(record, offsets=offsets)
        self._world.tell(f"{self.name} has epoch {self._epoch} on top of batch {record.batch}")
        if record.batch:
            job.transactions.publish(record)

    def _run(self, job: JobConnection) -> Generator[str, None, None]:
        assert self._record is not None
        self.process.connections[os.getpid(), _HANDLE.digest] = job
        reader = JobReader(
            Launch(
                handle=_HANDLE,
                epoch=self._epoch,
                record=msgspec.json.encode(self._record),
                queues=self.queues,
                splits=self.plan.settings.partitions,
            )
        )
        at: dict[str, Any] = reader.initialOffset()
        while True:
            yield "plans"
            with patch.object(worker, "_connections", self.process.connections):
                end = reader.latestOffset(at, ReadAllAvailable())
                if end == at:
                    continue
                splits = reader.partitions(at, end)
            yield "processes"
            blocks = self._process(reader, splits)
            yield "commits"
            stages = len(self.plan.stages.stages)
            clock = int((BEGIN + self._world.now) * 1000)
            done, _ = assemble(self._record, self._epoch, blocks, stages, clock)
            job.transactions.commit(done)
            yield "publishes"
            job.transactions.publish(done.record)
            self._record, at = done.record, end
            self._world.tell(f"{self.name} has committed batch {done.record.batch}")

    def _process(self, reader: JobReader, splits: Any) -> list[Block]:
        blocks: list[Block] = []
        for split in splits:
            blocks += self._task(partial(_listed, reader.read, split))
        partitions = self.plan.settings.partitions
        for stage in range(1, len(self.plan.stages.stages)):
            run = stage_function(_HANDLE, stage)
            shares = [
                rows_of([block for block in blocks if block.partition % partitions == partition])
                for partition in range(partitions)
            ]
            blocks = []
            for share in shares:
                blocks += self._task(partial(_run_stage, run, share))
        return blocks

    def _task(self, run: Callable[[], list[pa.RecordBatch]]) -> list[Block]:
        """Run a task as Spark does: again where it failed, at times twice."""
        chance = self._world.chance
        for attempt in itertools.count(1):
            number = chance.randrange(len(self.executors))
            executor = self.executors[number]
            try:
                rows = self._attempt(executor, self.machines[number], run)
                if chance.random() < 0.05:
                    other = chance.randrange(len(self.executors))
                    again = self._attempt(self.executors[other], self.machines[other], run)
                    rows = chance.choice([rows, again])
            except Killed:
                if self.process.dead:
                    raise
                self._replace_executors()
            except HeadraceError as error:
                if self.process.dead:
                    raise Killed from error
                if attempt == _ATTEMPTS:
                    raise
            else:
                return [block for batch in rows for block in blocks_of(batch)]
        raise AssertionError

    def _attempt(
        self, executor: Process, machine: Path, run: Callable[[], list[pa.RecordBatch]]
    ) -> list[pa.RecordBatch]:
        key = os.getpid(), _HANDLE.digest
        _Attempts.numbers = self._attempts
        with (
            self._world.inside(executor),
            patch.object(worker, "TaskContext", _Attempts),
            patch.object(worker, "_connections", executor.connections),
        ):
            if key not in executor.connections:
                settings = replace(self.plan.settings, state_dir=machine)
                executor.connections[key] = JobConnection(replace(self.plan, settings=settings))
            return run()

    def _executor(self, number: int) -> Process:
        executor = self._start(f"{self.name}.{number}")
        executor.on_death.append(lambda: self._disk.unlock(self.machines[number]))
        return executor

    def _replace_executors(self) -> None:
        for number, executor in enumerate(self.executors):
            if executor.dead:
                self._world.tell(f"{executor.name} is started anew")
                self.executors[number] = self._executor(number)


def _listed(read: Callable[[Any], Iterator[pa.RecordBatch]], split: Any) -> list[pa.RecordBatch]:
    return list(read(split))


def _run_stage(run: StageFunction, share: pa.RecordBatch) -> list[pa.RecordBatch]:
    return list(run(iter([share])))


def client_settings() -> dict[str, Any]:
    """Say how long clients wait and go on trying."""
    return {
        "request_timeout": "500 ms",
        "retry_timeout": "5 s",
        "connect_timeout": "1 s",
        "lease_expiry": "6 s",
    }
