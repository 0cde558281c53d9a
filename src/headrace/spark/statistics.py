"""How far a job is, and how fast."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.runtime.standing import OperatorStatistics, longest, operator_statistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.protocol.transactions import CommitRecord, QueueName
    from headrace.runtime.commit.drivers import LeaseWait
    from headrace.runtime.standing import QueueLag
    from headrace.spark.batches.failures import BatchSinkStatistics


_BATCHES_IN_RATE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatistics:
    """A job at one moment."""

    #: Whether it runs, or may go on by itself.
    running: bool
    #: Number of the driver; it rises with every start.
    epoch: int
    #: Last committed batch.
    batch: int
    #: Messages read, or tuples that spouts emitted, and messages written, since its first batch.
    records_in: int
    records_out: int
    #: Messages that no deserializer could read, by what became of them.
    skipped: int
    dead_lettered: int
    #: Messages in the source topics that are not committed yet; None before the first commit.
    lag: int | None
    #: Time from one commit to the next, of the last batch.
    batch_duration: timedelta
    #: Messages read per second, over the last batches of this start.
    records_per_second: float
    #: Age of the oldest of these messages; None where nothing is known of it.
    behind: timedelta | None
    #: Keys in all state stores, and bytes of keys and values.
    state_keys: int
    state_bytes: int
    #: State messages read and to read by the restores that run now.
    restored: int
    to_restore: int
    #: Times that the job went on after a failure, since this start.
    restarts: int
    #: What each operator did since the job's first batch, by its name.
    operators: Mapping[str, OperatorStatistics]
    #: How each ``for_each_batch`` and ``sink_dataframe`` stands, by its name.
    batches: Mapping[str, BatchSinkStatistics]
    #: Jobs that these numbers are of, and those of them that have failed for good.
    groups: int = 1
    failed: int = 0
    #: What it waits for that is about to run: another driver's lease.
    waiting: LeaseWait | None = None
    #: Bytes of keys and values that came from outside systems, and of messages that went there.
    outside_bytes: int = 0


def total(found: Sequence[JobStatistics]) -> JobStatistics:
    """Sum up how several jobs are that run together: the groups of one topology.

    It runs while all of them do; epoch and duration of batches are the highest; lag and age are
    known where every job's is.
    """
    lags = [one.lag for one in found]
    ages = [one.behind for one in found]
    return JobStatistics(
        running=all(one.running for one in found),
        epoch=max((one.epoch for one in found), default=0),
        batch=sum(one.batch for one in found),
        records_in=sum(one.records_in for one in found),
        records_out=sum(one.records_out for one in found),
        skipped=sum(one.skipped for one in found),
        dead_lettered=sum(one.dead_lettered for one in found),
        lag=None if not found or None in lags else sum(lag for lag in lags if lag is not None),
        behind=max((age for age in ages if age is not None), default=None),
        batch_duration=max((one.batch_duration for one in found), default=timedelta(0)),
        records_per_second=sum(one.records_per_second for one in found),
        state_keys=sum(one.state_keys for one in found),
        state_bytes=sum(one.state_bytes for one in found),
        restored=sum(one.restored for one in found),
        to_restore=sum(one.to_restore for one in found),
        restarts=sum(one.restarts for one in found),
        operators={name: each for one in found for name, each in one.operators.items()},
        batches={name: each for one in found for name, each in one.batches.items()},
        groups=len(found),
        failed=sum(one.failed for one in found),
        outside_bytes=sum(one.outside_bytes for one in found),
        waiting=next((one.waiting for one in found if one.waiting is not None), None),
    )


class Meter:
    """Collects what :class:`JobStatistics` shows."""

    def __init__(self) -> None:
        self._commits: deque[tuple[float, int]] = deque(maxlen=_BATCHES_IN_RATE + 1)

    def committed(self, record: CommitRecord) -> None:
        """Take note of a commit."""
        self._commits.append((time.monotonic(), record.counters.get("records_in", 0)))

    def statistics(
        self,
        record: CommitRecord | None,
        lag: Mapping[QueueName, QueueLag] | None,
        restore: tuple[int, int],
        *,
        running: bool,
        batches: Mapping[str, BatchSinkStatistics],
        restarts: int = 0,
        waiting: LeaseWait | None = None,
    ) -> JobStatistics:
        """Put the numbers together."""
        commits = list(self._commits)
        rate = 0.0
        duration = 0.0
        if len(commits) > 1:
            (first, before), (last, after) = commits[0], commits[-1]
            rate = (after - before) / max(last - first, 1e-9)
            duration = last - commits[-2][0]
        counters = record.counters if record else {}
        return JobStatistics(
            running=running,
            epoch=record.epoch if record else 0,
            batch=record.batch if record else 0,
            records_in=counters.get("records_in", 0),
            records_out=counters.get("records_out", 0),
            skipped=counters.get("skipped", 0),
            dead_lettered=counters.get("dead_lettered", 0),
            lag=None if lag is None else sum(queue.messages for queue in lag.values()),
            behind=None if lag is None else longest(lag.values()),
            batch_duration=timedelta(seconds=duration),
            records_per_second=rate,
            state_keys=sum(state.count for state in record.states) if record else 0,
            state_bytes=sum(state.size for state in record.states) if record else 0,
            restored=restore[0],
            to_restore=restore[1],
            restarts=restarts,
            operators={} if record is None else operator_statistics(record, lag),
            batches=batches,
            failed=int(not running),
            waiting=waiting,
            outside_bytes=counters.get("outside_bytes", 0),
        )
