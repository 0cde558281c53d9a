"""How far a job is, and how fast."""

from __future__ import annotations

import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.runtime.watermarks import source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.task import Summary
    from headrace.spark.batches.status import BatchSinkStatistics

__all__ = ["JobStatistics", "Meter", "OperatorStatistics"]

_BATCHES_IN_RATE = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatistics:
    """One operator of a job at one moment."""

    #: Records that reached it and that it gave, since this start.  What was combined before a
    #: shuffle counts once per key and task.
    records_in: int
    records_out: int
    #: Records that came too late, and those that its ``on_error`` took out, since the first batch.
    late: int
    dropped: int
    #: How far event time has come for it, or in the slowest queue of a source; None where it
    #: plays no part, or none has come yet.
    watermark: datetime | None
    #: Entries of its state store.
    state_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatistics:
    """A job at one moment."""

    #: Whether it runs, or may go on by itself.
    running: bool
    #: Number of the driver; it rises with every start.
    epoch: int
    #: Last committed batch.
    batch: int
    #: Messages read and written since the job's first batch.
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
    #: Keys in all state stores.
    state_keys: int
    #: State messages read and to read by the restores that run now.
    restored: int
    to_restore: int
    #: Times that the job went on after a failure, since this start.
    restarts: int
    #: What each operator did, by its name.
    operators: Mapping[str, OperatorStatistics]
    #: How each ``for_each_batch`` and ``sink_dataframe`` stands, by its name.
    batches: Mapping[str, BatchSinkStatistics]


class Meter:
    """Collects what :class:`JobStatistics` shows."""

    def __init__(self) -> None:
        self.restarts = 0
        self._commits: deque[tuple[float, int]] = deque(maxlen=_BATCHES_IN_RATE + 1)
        self._records: Counter[str] = Counter()
        self._given: Counter[str] = Counter()

    def committed(self, record: CommitRecord, summaries: list[Summary]) -> None:
        """Take note of a commit."""
        self._commits.append((time.monotonic(), record.counters.get("records_in", 0)))
        for summary in summaries:
            self._records.update(summary.records)
            self._given.update(summary.given)

    def statistics(
        self,
        record: CommitRecord | None,
        lag: int | None,
        restore: tuple[int, int],
        *,
        running: bool,
        batches: Mapping[str, BatchSinkStatistics],
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
            lag=lag,
            batch_duration=timedelta(seconds=duration),
            records_per_second=rate,
            state_keys=sum(state.count for state in record.states) if record else 0,
            restored=restore[0],
            to_restore=restore[1],
            restarts=self.restarts,
            operators={} if record is None else self._of_operators(record),
            batches=batches,
        )

    def _of_operators(self, record: CommitRecord) -> dict[str, OperatorStatistics]:
        watermarks = dict(record.progress)
        for origin, time_ in record.watermarks.items():
            source = source_of(origin)
            watermarks[source] = min(time_, watermarks.get(source, time_))
        entries: Counter[str] = Counter()
        for state in record.states:
            entries[state.store] += state.count
        counted = record.counters.get
        return {
            name: OperatorStatistics(
                records_in=self._records[name],
                records_out=self._given[name],
                late=counted(f"late.{name}", 0),
                dropped=counted(f"skipped:{name}", 0) + counted(f"dead_lettered:{name}", 0),
                watermark=_moment(watermarks.get(name)),
                state_keys=entries[name],
            )
            for name in self._records
        }


def _moment(milliseconds: int | None) -> datetime | None:
    if milliseconds is None:
        return None
    with suppress(OverflowError):
        return _EPOCH + timedelta(milliseconds=milliseconds)
    return None
