"""Where a job reads on: after its last commit or where its sources say, held against its queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.client import MessageQueue
from headrace.errors import OffsetExpiredError, SettingsError

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord, PlanAnswer, QueueName
    from headrace.runtime.job_plan import JobConnection, JobPlan
    from headrace.topology import Source, Start


logger = logging.getLogger(__name__)


def starting_offsets(
    job: JobConnection, record: CommitRecord, *, restarted: bool = False
) -> dict[QueueName, int]:
    """Say where a start of the job begins to read, by queue; other queues begin at their first.

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
        _check_names(job, source, start, queues)
        for queue, offset in chosen_offsets(start, queues, answer, job.offsets_at).items():
            chosen[queue] = min(offset, chosen.get(queue, offset))
    anew = {queue for source in beginning for queue in _queues_of(source, answer.latest)}
    kept = {queue: offset for queue, offset in record.offsets.items() if queue not in anew}
    return held_offsets(job.plan, {**kept, **chosen}, answer)


def held_offsets(
    plan: JobPlan, offsets: Mapping[QueueName, int], answer: PlanAnswer
) -> dict[QueueName, int]:
    """Hold offsets against what their queues hold; give those at which the job goes on.

    An offset may be anything from the first one that the queue holds to its end.  Where it is not,
    the setting ``on_expired_offset`` says whether the job reads on at the first.  Queues that the
    answer does not name, as their broker is away or nobody reads them now, keep their offsets.

    Raises
    ------
    OffsetExpiredError
        A queue does not hold its offset, and the setting is to fail.
    """
    held = dict(offsets)
    for queue, offset in offsets.items():
        if are_held({queue: offset}, answer):
            continue
        first, end = answer.begins.get(queue, offset), answer.latest.get(queue, offset)
        error = _not_held(plan.job, queue, offset, first, end)
        if plan.settings.on_expired_offset == "fail":
            raise error
        logger.warning("%s; it goes on at %d", error.message, first)
        held[queue] = first
    return held


def are_held(offsets: Mapping[QueueName, int], answer: PlanAnswer) -> bool:
    """Tell whether queues hold the offsets at which a job goes on; so do those that are not named."""
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

    A queue that is new in a topic which the job has read is no new source: it is read from its
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


def _check_names(
    job: JobConnection, source: Source, start: Start, queues: Collection[QueueName]
) -> None:
    if not isinstance(start, Mapping):
        return
    known = {*queues, *(MessageQueue.parse(queue).queue_id for queue in queues)}
    wrong = [queue for queue in start if queue not in known]
    if wrong:
        raise SettingsError(
            f"source '{source.name}' of job '{job.plan.job}' starts at an offset of queue"
            f" {wrong[0]!r}, which does not exist",
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
