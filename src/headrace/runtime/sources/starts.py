"""Where a start of a job begins to read: after its last commit, or where its sources say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.client import MessageQueue
from headrace.errors import OffsetExpiredError, SettingsError

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord, PlanAnswer, QueueName
    from headrace.runtime.job_plan import JobConnection
    from headrace.topology import Source, Start

__all__ = ["chosen_offsets", "sources_that_begin", "starting_offsets"]


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
        The broker does not hold the position of the last commit, or one that a source names.
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
    return _checked(job, {**kept, **chosen}, answer)


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
    """Give the offsets where a source begins; queues that are left out begin at their first."""
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


def _checked(
    job: JobConnection, offsets: Mapping[QueueName, int], answer: PlanAnswer
) -> dict[QueueName, int]:
    """Compare offsets with what the broker still holds."""
    checked = dict(offsets)
    for queue, offset in offsets.items():
        first = answer.begins.get(queue, 0)
        if offset > answer.latest.get(queue, offset):
            raise OffsetExpiredError(
                f"job '{job.plan.job}' must go on at offset {offset} of queue {queue}, which ends"
                f" at {answer.latest[queue]}",
                hint="the topic was made anew since the last commit: start the job under a new"
                " name, or restore the topic",
            )
        if offset >= first:
            continue
        if job.plan.settings.on_expired_offset == "fail":
            raise OffsetExpiredError(
                f"job '{job.plan.job}' must go on at offset {offset} of queue {queue}, but the"
                f" broker's first offset is {first}: {first - offset} messages are gone",
                hint="start with on_expired_offset='earliest' to go on at the first offset that"
                " is left, or restore the topic",
            )
        checked[queue] = first
    return checked
