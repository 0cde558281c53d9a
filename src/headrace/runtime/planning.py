"""Planning a batch: whether there is one, and how ranges of queues become tasks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.client import MessageQueue
from headrace.errors import HeadraceError, OffsetExpiredError, SettingsError, refuse
from headrace.runtime.event_time.silence import (
    BatchTime,
    announcements,
    batch_time,
    is_due,
    origins_of,
    owes_announcement,
)

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord, PlanAnswer, QueueName
    from headrace.runtime.job_plan import JobConnection, JobPlan
    from headrace.topology import Source, Start, Topology


# Where a job reads on: after its last commit or where its sources say, held against its queues.

logger = logging.getLogger(__name__)


def starting_offsets(
    job: JobConnection, record: CommitRecord, *, restarted: bool = False
) -> dict[QueueName, int]:
    """Return where a start of the job begins to read; queues left out begin at their first offset.

    Parameters
    ----------
    job
        The job.
    record
        Its last commit.
    restarted
        Whether the job goes on by itself after a failure, and so is not started anew.

    Raises
    ------
    OffsetExpiredError
        A queue does not hold the offset of the last commit, or one that a source names.
    SettingsError
        A source names a queue that does not exist.
    """
    answer = job.transactions.plan(job.source_topics(), record.offsets, 0, 0)
    sources = job.plan.topology.sources
    beginning = sources_that_begin(sources, record.offsets, answer.latest, restarted=restarted)
    chosen: dict[QueueName, int] = {}
    for source in beginning:
        start = job.plan.settings.start if source.start is None else source.start
        queues = _queues_of(source, answer.latest)
        if (wrong := _unknown_queue(job.plan.job, source, start, queues)) is not None:
            raise wrong
        for queue, offset in chosen_offsets(start, queues, answer, job.offsets_at).items():
            chosen[queue] = min(offset, chosen.get(queue, offset))
    anew = {queue for source in beginning for queue in _queues_of(source, answer.latest)}
    kept = {queue: offset for queue, offset in record.offsets.items() if queue not in anew}
    return held_offsets(job.plan, {**kept, **chosen}, answer)


def held_offsets(
    plan: JobPlan, offsets: Mapping[QueueName, int], answer: PlanAnswer
) -> dict[QueueName, int]:
    """Check offsets against what their queues hold, and return those at which the job goes on.

    An offset may be anything from the first one that the queue holds to its end.  Where it is not,
    the setting ``on_expired_offset`` says whether the job reads on at the first.  Queues that the
    answer does not name, as their broker is away or nobody reads them now, keep their offsets.

    Raises
    ------
    OffsetExpiredError
        A queue does not hold its offset, and the setting is to fail.
    """
    problems = _expired(plan.job, offsets, answer)
    if problems and plan.settings.on_expired_offset == "fail":
        refuse(f"job '{plan.job}' cannot go on", list(problems.values()))
    held = dict(offsets)
    for queue, error in problems.items():
        first = answer.begins.get(queue, offsets[queue])
        logger.warning("%s; it goes on at %d", error.message, first)
        held[queue] = first
    return held


def _expired(
    job: str, offsets: Mapping[QueueName, int], answer: PlanAnswer
) -> dict[QueueName, OffsetExpiredError]:
    """Return why queues do not hold the offsets at which a job goes on, by the queue."""
    return {
        queue: _not_held(
            job,
            queue,
            offset,
            answer.begins.get(queue, offset),
            answer.latest.get(queue, offset),
        )
        for queue, offset in offsets.items()
        if not are_held({queue: offset}, answer)
    }


def misplaced_offsets(plan: JobPlan, answer: PlanAnswer) -> list[HeadraceError]:
    """Return what is wrong with the offsets at which a start of the job would begin to read.

    Those of a moment are not looked up.
    """
    committed = {} if answer.record is None else answer.record.offsets
    problems: list[HeadraceError] = []
    chosen = dict(committed)
    for source in sources_that_begin(plan.topology.sources, committed, answer.latest):
        queues = _queues_of(source, answer.latest)
        chosen = {queue: offset for queue, offset in chosen.items() if queue not in queues}
        start = plan.settings.start if source.start is None else source.start
        if isinstance(start, Mapping):
            wrong = _unknown_queue(plan.job, source, start, queues)
            problems += [] if wrong is None or not queues else [wrong]
            chosen |= chosen_offsets(start, queues, answer, lambda *_: {})
    if plan.settings.on_expired_offset == "fail":
        problems += _expired(plan.job, chosen, answer).values()
    return problems


def are_held(offsets: Mapping[QueueName, int], answer: PlanAnswer) -> bool:
    """Return whether queues hold the offsets at which a job goes on; unnamed ones count as such."""
    return all(
        answer.begins.get(queue, offset) <= offset <= answer.latest.get(queue, offset)
        for queue, offset in offsets.items()
    )


def sources_that_begin(
    sources: Collection[Source],
    offsets: Mapping[QueueName, int],
    queues: Collection[QueueName],
    *,
    restarted: bool = False,
) -> list[Source]:
    """Choose the sources whose ``start`` holds: those that the job has not read, or that say so.

    A queue that is new in a topic which the job has read is not a new source: it is read from its
    first message, as a running job does.
    """
    return [
        source
        for source in sources
        if not any(queue in offsets for queue in _queues_of(source, queues))
        or not (source.start_once or restarted)
    ]


def chosen_offsets(
    start: Start,
    queues: Collection[QueueName],
    answer: PlanAnswer,
    offsets_at: Callable[[Collection[QueueName], datetime], dict[QueueName, int]],
) -> dict[QueueName, int]:
    """Return the offsets where a source begins; queues that are left out begin at their first."""
    if start == "first":
        return {}
    if start == "latest":
        return {queue: answer.latest[queue] for queue in queues}
    if isinstance(start, datetime):
        return offsets_at(queues, start)
    assert isinstance(start, Mapping), "the front door and the settings take nothing else"
    given: dict[QueueName, int] = {}
    for queue in queues:
        number = MessageQueue.parse(queue).queue_id
        if queue in start or number in start:
            given[queue] = start[queue] if queue in start else start[number]
    return given


def _unknown_queue(
    job: str, source: Source, start: Start, queues: Collection[QueueName]
) -> SettingsError | None:
    known = {*queues, *(MessageQueue.parse(queue).queue_id for queue in queues)}
    wrong = [queue for queue in start if queue not in known] if isinstance(start, Mapping) else []
    if not wrong:
        return None
    return SettingsError(
        f"source '{source.name}' of job '{job}' starts at an offset of queue {wrong[0]!r}, which"
        " does not exist",
        hint=f"its queues are {', '.join(sorted(queues)) or 'none'}",
    )


def _queues_of(source: Source, queues: Collection[QueueName]) -> list[QueueName]:
    return [queue for queue in queues if source.reads(MessageQueue.parse(queue).topic)]


def _not_held(job: str, queue: QueueName, offset: int, first: int, end: int) -> OffsetExpiredError:
    what = f"job '{job}' must go on at offset {offset} of queue {queue}"
    if offset < first:
        return OffsetExpiredError(
            f"{what}, but the broker's first offset is {first}: {first - offset} messages are gone",
            hint="start with on_expired_offset='earliest' to go on at the first offset that"
            " is left, or restore the topic",
        )
    return OffsetExpiredError(
        f"{what}, which ends at {end}: its broker has lost messages that the job has read, or the"
        " topic was made anew, and what is sent now gets offsets that count as read",
        hint="start with on_expired_offset='earliest' to read the queue from its first message, or"
        f" say where it goes on: headrace job reset {job} --to '{{\"{queue}\": {end}}}'",
    )


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
    #: The messages as a pull has them, where the plan brought them along.
    messages: bytes = field(default=b"", repr=False)

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
    """Return whether a batch must happen for spouts to begin: they say when the next one is due."""
    return record.due is None and bool(topology.spouts)


def hurries(plan: JobPlan, answer: PlanAnswer, wait: int) -> bool:
    """Return whether the next batch may be due within so many ms, with or without messages.

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
    """Return what is known of time by what the cluster holds and where reading goes on."""
    assert answer.record is not None, "a job is opened before its batches are planned"
    unread = {queue for queue, end in answer.latest.items() if end > starts[queue]}
    origins = origins_of(plan.stages, answer.ends, plan.settings.partitions, written)
    return batch_time(origins, answer.record, unread, answer.clock, began)


def owes_batch(
    plan: JobPlan, answer: PlanAnswer, written: Mapping[str, Collection[QueueName]]
) -> bool:
    """Return whether the next batch announces event time that somebody waits for."""
    assert answer.record is not None, "a job is opened before its batches are planned"
    starts = {**answer.begins, **answer.record.offsets}
    time = planned_time(plan, answer, starts, answer.clock, written)
    return owes_announcement(plan.stages, time, answer.record)


def make_splits(
    ranges: Mapping[QueueName, tuple[int, int]],
    most: int,
    least: int = 1,
    *,
    messages: Mapping[QueueName, bytes] = MappingProxyType({}),
) -> list[Split]:
    """Share ranges out to tasks, evenly by messages; a queue stays whole.

    ``messages`` has those that the plan brought along.

    >>> splits = make_splits({"a@b@0": (0, 9000), "a@b@1": (5, 6), "a@b@2": (0, 8000)}, 2)
    >>> [[len(part) for part in split.ranges] for split in splits]
    [[9000], [8000, 1]]
    """
    work = [
        OffsetRange(queue, begin, end, messages.get(queue, b""))
        for queue, (begin, end) in ranges.items()
        if end > begin
    ]
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
