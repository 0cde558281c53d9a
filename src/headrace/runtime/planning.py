"""Planning a batch: whether there is one, and how ranges of queues become tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.runtime.event_time.silence import (
    BatchTime,
    announcements,
    batch_time,
    is_due,
    origins_of,
    owes_announcement,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.protocol.transactions import CommitRecord, PlanAnswer, QueueName
    from headrace.runtime.job_plan import JobPlan
    from headrace.topology import Topology


#: A task costs some ten milliseconds: below so many messages another one does not pay.
_MESSAGES_PER_SPLIT = 5_000


# What goes to workers has no slots: it is pickled by the names of its fields then, which workers of
# another version find in other places.
@dataclass(frozen=True)
class OffsetRange:
    """Messages of one queue with offsets from ``begin`` up to ``end``, ``end`` left out."""

    queue: QueueName
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Split:
    """What one task of the first stage reads."""

    number: int
    #: Splits of the batch.
    of: int
    ranges: tuple[OffsetRange, ...]
    #: Where the batch ends, of all queues; in the first split only.
    ends: Mapping[QueueName, int] | None = None


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """What is known of a batch before it runs."""

    answer: PlanAnswer
    #: Where it begins, by queue.
    starts: Mapping[QueueName, int]
    time: BatchTime


def plan_batch(
    plan: JobPlan,
    answer: PlanAnswer,
    offsets: Mapping[QueueName, int],
    began: int,
    written: Mapping[str, Collection[QueueName]],
    *,
    asked: bool = False,
) -> PlannedBatch | None:
    """Plan the next batch; None while there is nothing to read and nothing is due.

    Parameters
    ----------
    plan
        The job.
    answer
        What the cluster holds.
    offsets
        Next offset to read, by queue.
    began
        When this start of the job was first planned, ms since 1970.
    written
        Queues that the job writes, by topic.
    asked
        Whether something outside waits for a batch.
    """
    record = answer.record
    assert record is not None, "a job is opened before its batches are planned"
    starts = {**answer.begins, **offsets}
    has_news = asked or any(end > starts[queue] for queue, end in answer.ends.items())
    begins = begins_with_spouts(plan.topology, record)
    if not plan.topology.timed:
        due = has_news or begins or (record.due is not None and record.due <= answer.clock)
        return PlannedBatch(answer, starts, BatchTime([], {}, [], {})) if due else None
    time = planned_time(plan, answer, starts, began, written)
    stages = plan.stages
    due = is_due(stages, time, record, answer.clock) or owes_announcement(stages, time, record)
    if not (has_news or due or begins):
        return None
    # The first batch of a start tells queues that are new how far event time has come.
    first = not record.lineage or record.lineage[-1][0] != record.epoch
    announced = announcements(stages, time, record, again=first)
    return PlannedBatch(answer, starts, replace(time, announced=announced))


def begins_with_spouts(topology: Topology, record: CommitRecord) -> bool:
    """Tell whether a batch must happen so that spouts begin: they say when the next one is due."""
    return record.due is None and bool(topology.spouts)


def hurries(plan: JobPlan, answer: PlanAnswer, wait: int) -> bool:
    """Tell whether the next batch may be due sooner than in so many ms, with or without messages.

    Spouts are asked again at once while they emit, so nobody may wait for a message before.
    """
    record = answer.record
    if record is None or not plan.topology.spouts:
        return False
    return record.due is None or record.due < answer.clock + wait


def least_splits(plan: JobPlan) -> int:
    """Return how many tasks the first stage needs at least: those of its spouts."""
    tasks = [spout.parallelism for spout in plan.topology.spouts]
    return min(max(tasks, default=1), plan.settings.partitions)


def planned_time(
    plan: JobPlan,
    answer: PlanAnswer,
    starts: Mapping[QueueName, int],
    began: int,
    written: Mapping[str, Collection[QueueName]],
) -> BatchTime:
    """Tell what is known of time by what the cluster holds and where reading goes on."""
    assert answer.record is not None, "a job is opened before its batches are planned"
    unread = {queue for queue, end in answer.latest.items() if end > starts[queue]}
    origins = origins_of(plan.stages, answer.ends, plan.settings.partitions, written)
    return batch_time(origins, answer.record, unread, answer.clock, began)


def owes_batch(
    plan: JobPlan, answer: PlanAnswer, written: Mapping[str, Collection[QueueName]]
) -> bool:
    """Tell whether the next batch announces event time that somebody waits for."""
    assert answer.record is not None, "a job is opened before its batches are planned"
    starts = {**answer.begins, **answer.record.offsets}
    time = planned_time(plan, answer, starts, answer.clock, written)
    return owes_announcement(plan.stages, time, answer.record)


def make_splits(
    ranges: Mapping[QueueName, tuple[int, int]], most: int, least: int = 1
) -> list[Split]:
    """Share ranges out to tasks, evenly by messages; a queue stays whole.

    >>> splits = make_splits({"a@b@0": (0, 9000), "a@b@1": (5, 6), "a@b@2": (0, 8000)}, 2)
    >>> [[len(part) for part in split.ranges] for split in splits]
    [[9000], [8000, 1]]
    """
    work = [OffsetRange(queue, begin, end) for queue, (begin, end) in ranges.items() if end > begin]
    total = sum(map(len, work))
    count = max(1, least, min(most, len(work), math.ceil(total / _MESSAGES_PER_SPLIT)))
    loads: list[list[OffsetRange]] = [[] for _ in range(count)]
    sizes = [0] * count
    for part in sorted(work, key=lambda part: (-len(part), part.queue)):
        smallest = sizes.index(min(sizes))
        loads[smallest].append(part)
        sizes[smallest] += len(part)
    ends = {queue: end for queue, (_, end) in ranges.items()}
    return [
        Split(number, count, tuple(load), ends if number == 0 else None)
        for number, load in enumerate(loads)
    ]
