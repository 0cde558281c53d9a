"""Word count without a broker: what Spark, Python and the state cost by themselves.

Everything is the job's own, the Spark plan, the stages, the local state and the driver's part of a
batch, but for what lies outside: messages are made where they would be pulled, output is thrown
away where it would be staged, and a file stands for the commit topic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.lines import random_lines
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, WORDS_PER_LINE, Sizes
from benchmarks.word_count import job_settings, steady_rate, word_count
from headrace.client import Client, MessageQueue, PullConsumer
from headrace.protocol.columns import MessageColumns
from headrace.protocol.transactions import (
    CommitAnswer,
    CommitRecord,
    OpenAnswer,
    PlanAnswer,
    StagedPart,
)
from headrace.runtime.job_plan import JobConnection, JobPlan
from headrace.spark.driver import assemble
from headrace.spark.session import get_session, scratch_folder
from headrace.spark.source import QueryStart, blocks_of, run_query
from headrace.spark.statistics import pickle_plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.runtime.commit.transactions import Attempt, BatchEnd, QueueMessages, StageWriter

__all__ = ["word_count_floor"]

_NOWHERE = "127.0.0.1:1"
_EPOCH = 1
#: Different lines that a process makes; more would only be slower to make.
_POOL = 1 << 17


@benchmark({"word_count_floor_1k": "words/s"})
def word_count_floor(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count as many words in as many batches as ``word_count_1k`` does."""
    for run in range(plan.runs):
        with (
            TemporaryDirectory(prefix="headrace-bench-") as state,
            TemporaryDirectory(prefix="headrace-bench-", dir=scratch_folder()) as scratch,
        ):
            job = _FloorPlan(
                topology=word_count(f"floor-{run}", "lines", "counts"),
                settings=job_settings(_NOWHERE, Path(state), plan.sizes),
                namesrv=_NOWHERE,
                embedded=True,
                sizes=plan.sizes,
                scratch=Path(scratch),
            )
            yield {"word_count_floor_1k": steady_rate(_Driver(job).run(), plan.sizes)}


class _Driver:
    """What :class:`headrace.spark.StreamJob` does for a batch, and no more."""

    def __init__(self, plan: _FloorPlan) -> None:
        self._plan = plan
        self._stages = len(plan.stages.stages)
        self._transactions = _NoTransactions(plan)
        self._record = self._transactions.open("benchmark").record
        self._commits: list[CommitRecord] = []
        self._done = threading.Event()

    def run(self) -> list[CommitRecord]:
        """Run the query to its end; give its commits."""
        plan = self._plan
        topics = [*plan.sink_topics, *plan.state_topics.values()]
        launch = QueryStart(
            handle=pickle_plan(plan),
            epoch=_EPOCH,
            record=msgspec.json.encode(self._record),
            queues={topic: _queues(topic) for topic in topics},
            splits=plan.settings.partitions,
        )
        limit = threading.Timer(plan.sizes.patience.total_seconds(), self._done.set)
        limit.start()
        try:
            run_query(
                get_session(plan.settings),
                launch,
                stages=self._stages,
                partitions=plan.settings.partitions,
                interval=plan.settings.commit_interval,
                checkpoint=str(plan.scratch / "checkpoint"),
                on_batch=self._on_batch,
                wait=self._done.wait,
            )
        finally:
            limit.cancel()
        counted = self._record.counters["records_in"] * WORDS_PER_LINE
        assert counted == plan.sizes.words, f"{counted} of {plan.sizes.words} words were counted"
        return self._commits

    def _on_batch(self, frame: DataFrame, _: int) -> None:
        batches = frame.toArrow().to_batches()
        blocks = [block for batch in batches for block in blocks_of(batch)]
        clock = int(time.time() * 1000)
        end, _summaries = assemble(self._record, _EPOCH, blocks, self._stages, clock)
        self._transactions.commit(end)
        self._record = end.record
        self._commits.append(end.record)
        if end.record.counters["records_in"] * WORDS_PER_LINE >= self._plan.sizes.words:
            self._done.set()


def _queues(topic: str) -> list[str]:
    return [MessageQueue(topic, "nobody", number).name for number in range(QUEUES)]


@dataclass(frozen=True)
class _FloorPlan(JobPlan):
    """A job whose processes connect to nothing."""

    sizes: Sizes
    #: Folder for the last commit, in memory.
    scratch: Path

    def connect(self, client: Client | None = None) -> JobConnection:
        del client
        return _NoConnection(self)


class _NoConnection(JobConnection):
    def __init__(self, plan: _FloorPlan) -> None:
        super().__init__(plan)
        self.consumer = _Lines(self, plan.sizes)
        self.transactions = _NoTransactions(plan)


@dataclass(frozen=True, slots=True)
class _LineBlock:
    """Lines as if they were pulled."""

    queue_id: int
    begin: int
    bodies: pa.BinaryArray

    def pieces(self) -> Iterator[MessageColumns]:
        count = len(self.bodies)
        offsets = np.arange(self.begin, self.begin + count)
        now = np.full(count, time.time_ns() // 1_000_000)
        yield MessageColumns(
            queue_offset=offsets,
            # The queues take turns in the log.
            position=offsets * QUEUES + self.queue_id,
            born=now,
            stored=now,
            queue_id=np.full(count, self.queue_id, np.int32),
            sys_flag=np.zeros(count, np.int32),
            body=self.bodies,
            properties=pa.array([b""], pa.binary()).take(pa.array(np.zeros(count, np.int64))),
        )


class _Lines(PullConsumer):
    """Makes the messages of a range of offsets instead of pulling them."""

    def __init__(self, connection: JobConnection, sizes: Sizes) -> None:
        super().__init__(connection.client)
        self._sizes = sizes
        self._pool: pa.BinaryArray | None = None

    def blocks(  # type: ignore[override]
        self, queue: MessageQueue, begin: int, end: int, **_: object
    ) -> Iterator[_LineBlock]:
        if self._pool is None:
            self._pool = pa.concat_arrays(list(random_lines(_POOL, self._sizes.few_words)))
        while begin < end:
            bodies = self._pool.slice(begin % _POOL, end - begin)
            yield _LineBlock(queue.queue_id, begin, bodies)
            begin += len(bodies)


class _NoTransactions:
    """Throws output away; a file keeps the last commit for whoever plans the next batch."""

    def __init__(self, plan: _FloorPlan) -> None:
        self._plan = plan
        self._path = plan.scratch / "commit.json"

    def open(self, driver: str) -> OpenAnswer:
        del driver
        record = CommitRecord(
            job=self._plan.job,
            kind="open",
            epoch=_EPOCH,
            batch=0,
            partitions=self._plan.settings.partitions,
        )
        self._keep(record)
        return OpenAnswer(epoch=_EPOCH, record=record)

    def plan(
        self, topics: list[str], offsets: Mapping[str, int], limit: int, wait: int
    ) -> PlanAnswer:
        (topic,) = topics
        queues = _queues(topic)
        lines = self._plan.sizes.words // WORDS_PER_LINE
        latest = dict.fromkeys(queues, lines // QUEUES)
        ends = {
            queue: min(end, offsets.get(queue, 0) + limit // QUEUES) if limit else end
            for queue, end in latest.items()
        }
        if wait and all(offsets.get(queue, 0) == end for queue, end in ends.items()):
            time.sleep(wait / 1000)
        return PlanAnswer(
            record=msgspec.json.decode(self._path.read_bytes(), type=CommitRecord),
            begins=dict.fromkeys(queues, 0),
            ends=ends,
            latest=latest,
            position=0,
            clock=time.time_ns() // 1_000_000,
        )

    def writer(self, attempt: Attempt) -> StageWriter:
        return _NoWriter(attempt)

    def commit(self, end: BatchEnd) -> CommitAnswer:
        self._keep(end.record)
        return CommitAnswer(batch=end.record.batch, already=False, position=0)

    def publish(self, record: CommitRecord) -> None:
        """Do nothing."""

    def is_published(self, record: CommitRecord) -> bool:
        del record
        return True

    shows_state = is_published

    @property
    def waiting(self) -> None:
        return None

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _keep(self, record: CommitRecord) -> None:
        written = self._path.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(record))
        written.replace(self._path)


class _NoWriter:
    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._records = 0

    def stage(self, messages: QueueMessages) -> int | None:
        self._records += len(messages)
        return None

    def finish(self) -> StagedPart:
        return StagedPart(
            stage=self._attempt.stage,
            partition=self._attempt.partition,
            attempt=self._attempt.number,
            chunks=0,
            records=self._records,
        )
