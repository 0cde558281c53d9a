"""A driver without Spark: the job's own source, stages and coordinator, one call each.

Everything that runs on Spark runs here, down to the staging and the local copies of the state;
Spark's part, to call the source and to bring rows from stage to stage, is played by a few lines.
So a test can put two drivers into exactly the positions that a pause, a crash or a lost answer
would put them into, in a fraction of the time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headrace.errors import refuse
from headrace.failpoints import failpoint
from headrace.protocol.transactions import CommitAnswer, CommitRecord
from headrace.runtime.checks import read_cluster, start_problems
from headrace.runtime.commit.transactions import BatchEnd
from headrace.runtime.control import Summary
from headrace.runtime.job_plan import JobConnection
from headrace.runtime.state.interface import StoreFactory
from headrace.runtime.state.steps import Migrations, settled_record
from headrace.settings import JobSettings
from headrace.spark import worker
from headrace.spark.cluster import make_connection, prepare_topics
from headrace.spark.driver import assemble
from headrace.spark.source import JobReader, QueryStart, blocks_of, stage_function
from headrace.spark.statistics import pickle_plan
from headrace.topology import Topology
from tests.faults.word_pipeline import topology

PARTITIONS = 2

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Planned:
    """A batch that is planned: where it begins and ends."""

    begin: Offset
    end: Offset


class _Attempts:
    """Stands in for Spark's task context: every attempt has a number of its own."""

    _numbers = itertools.count()

    @classmethod
    def get(cls) -> type[_Attempts]:
        return cls

    @classmethod
    def taskAttemptId(cls) -> int:  # noqa: N802 - Spark's name
        return next(cls._numbers)


class LocalDriver:
    """One driver of a job, that of the fault tests by default; opens an epoch when it is made."""

    def __init__(
        self,
        namesrv: str,
        folder: Path,
        batch_size: int = 20,
        *,
        job: Topology = topology,
        migrate: Migrations | None = None,
        stores: StoreFactory | None = None,
        life: int = 0,
        name: str = "local",
        journal: bool = False,
        **more: Any,
    ) -> None:
        given: dict[str, Any] = {"partitions": PARTITIONS} | more
        settings = JobSettings(
            namesrv=namesrv, data_dir=folder, max_records_per_batch=batch_size, **given
        )
        self._partitions = settings.partitions
        #: Bytes that went from stage to stage.
        self.passed_bytes = 0
        #: What the tasks of the last batch reported.
        self.summaries: list[Summary] = []
        self._job = make_connection(job, settings, namesrv, stores)
        if journal:
            # The protocol for RocketMQ needs nothing that an embedded broker has not.
            self._job = JobConnection(replace(self._job.plan, embedded=False))
        seen = read_cluster(self._job)
        refuse(
            f"job '{job.name}' cannot start", start_problems(self._job.plan, migrate or {}, seen)
        )
        queues = prepare_topics(self._job)
        self._name = name
        failpoint("job.before_open")
        # Drivers of one name count as one driver that begins anew: none waits for another's lease.
        answer = self._job.transactions.open(name)
        failpoint("job.opened")
        self.epoch = answer.epoch
        self.record: CommitRecord = settled_record(
            self._job.state_home, answer.record, self._job.plan, migrate or {}
        )
        self._stages = len(self._job.plan.stages.stages)
        self._handle = pickle_plan(self._job.plan)
        self._reader = JobReader(
            QueryStart(
                handle=self._handle,
                epoch=self.epoch,
                record=msgspec.json.encode(self.record),
                queues=queues,
                splits=self._partitions,
                life=life,
            )
        )
        self._at: Offset = self._reader.initialOffset()

    def roll_back(self) -> int:
        """Open another epoch, as a driver does whose batch has failed."""
        return self._job.transactions.open(self._name).epoch

    def plan(self) -> Planned | None:
        """Plan the next batch; None when everything is committed."""
        end = self._reader.latestOffset(self._at, ReadAllAvailable())
        return None if end == self._at else Planned(self._at, end)

    def process(self, planned: Planned | None = None, *, loses_blocks: bool = False) -> BatchEnd:
        """Run all tasks of a batch, which stages what they make.

        Where blocks are lost, the first stage runs anew when a partition of the second one has
        taken what the stage made first, as Spark does when it has lost an executor.
        """
        planned = planned or self.plan()
        assert planned is not None, "there is nothing to process"
        with patch.object(worker, "TaskContext", _Attempts):
            splits = self._reader.partitions(planned.begin, planned.end)
            rows = self._read(splits)
            for stage in range(1, self._stages):
                run = stage_function(self._handle, stage)
                shares = self._shuffled(rows)
                if loses_blocks and stage == 1:
                    shares[1:] = self._shuffled(self._read(splits))[1:]
                rows = [batch for share in shares for batch in run(iter([share]))]
        blocks = [block for batch in rows for block in blocks_of(batch)]
        self._at = planned.end
        end, self.summaries = assemble(self.record, self.epoch, blocks, self._stages, 0)
        return end

    def commit(self, end: BatchEnd) -> CommitAnswer:
        """Commit a batch and go on from it."""
        failpoint("job.before_commit")
        answer = self._job.transactions.commit(end)
        failpoint("job.after_commit")
        self.record = end.record
        self._job.transactions.publish(end.record)
        failpoint("job.published")
        return answer

    def catch_up(self, most: int | None = None) -> int:
        """Run batches until everything, or so many, are committed; how many there were."""
        batches = 0
        while batches != most and (planned := self.plan()) is not None:
            self.commit(self.process(planned))
            batches += 1
        return batches

    def _read(self, splits: Sequence[InputPartition]) -> list[pa.RecordBatch]:
        return [batch for split in splits for batch in self._reader.read(split)]

    def _shuffled(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Bring rows to their partitions, as Spark's exchange does."""
        rows = pa.Table.from_batches(batches).combine_chunks()
        self.passed_bytes += pc.sum(pc.binary_length(rows.column("payload"))).as_py() or 0
        partitions = rows.column("partition").to_numpy() % self._partitions
        shares = [rows.filter(pa.array(partitions == n)) for n in range(self._partitions)]
        return [batch for share in shares for batch in share.combine_chunks().to_batches()]

    def close(self) -> None:
        """End the epoch, and close the connections of the driver and of its tasks."""
        self._job.transactions.close()
        self._job.close()
        for key in [key for key in worker._connections if key[1] == self._handle.digest]:
            del worker._connections[key]
        used = {id(connection.client) for connection in worker._connections.values()}
        for name in [name for name, client in worker._clients.items() if id(client) not in used]:
            worker._clients.pop(name).close()

    def abandon(self) -> None:
        """Let go of the epoch after a failure: tasks keep their connections, as in workers."""
        self._job.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
