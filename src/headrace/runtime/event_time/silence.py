"""Who holds event time back, who is silent, and when a batch is due without a message.

Every queue of a source is an origin of event time, and so is every clock that an operator keeps.
An origin that has been silent for its timeout lets the others go on without it (design, section
5), and where all are silent time comes as far as the furthest of them.  All of this is decided once per batch, from the commit that it builds on, by pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from headrace.runtime.chunk import NEVER
from headrace.runtime.event_time.watermarks import (
    ClockTime,
    OperatorWatermark,
    clock_of,
    clock_times,
    origin_name,
)
from headrace.topology.operators.core import (
    Operator,
    SelectTimestamp,
    Source,
    Through,
    ThroughSource,
)

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord, QueueName
    from headrace.runtime.control import Summary
    from headrace.topology import StagePlan


@dataclass(frozen=True, slots=True)
class TimeOrigin:
    """One thing that moves event time: a queue as a source reads it, or a clock of an operator."""

    name: str
    #: It is silent after so long, ms; None: never.
    timeout: int | None
    #: Queues that feed it.
    queues: frozenset[QueueName]
    #: Whether every message of its queues moves it; a clock behind a shuffle gets some only.
    direct: bool = True
    #: Its time is the wall clock less so many ms, whether records come or not.
    behind_wall: int | None = None
    #: Clocks whose time it passes on: it is silent when all of them are.
    follows: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class BatchTime:
    """What a batch knows of time before its first record."""

    #: Names of all origins.
    origins: list[str]
    #: Watermarks by origin.
    watermarks: dict[str, int]
    #: Origins that have been silent for too long.
    idle: list[str]
    #: Since when each origin has been silent, ms since 1970.
    seen: dict[str, int]
    #: Watermarks that the batch announces, by the operator that writes a topic of the job's own.
    announced: dict[str, int] = field(default_factory=dict)

    def clocks(
        self, plan: StagePlan, readers: Mapping[QueueName, int] | None = None
    ) -> dict[str, ClockTime]:
        """Return how far each clock has come.

        ``readers`` names the task of the first stage that reads a queue.  Behind a shuffle, every
        partition of a clock is moved by the task of its own.
        """
        readers = readers or {}

        def mover(origin: str) -> object:
            _, _, place = origin.partition("/")
            return place if place.isdecimal() else readers.get(place)

        return clock_times(self.origins, self.watermarks, self.idle, plan.time_step, mover)


def milliseconds(duration: timedelta) -> int:
    """Return a duration in ms.

    >>> milliseconds(timedelta(seconds=2))
    2000
    """
    return round(duration.total_seconds() * 1000)


def origins_of(
    plan: StagePlan,
    queues: Collection[QueueName],
    partitions: int,
    written: Mapping[str, Collection[QueueName]] | None = None,
) -> Iterator[TimeOrigin]:
    """Yield every origin of event time in a job that reads these queues.

    Parameters
    ----------
    plan
        The topology.
    queues
        Queues that are read.
    partitions
        Partitions of the job.
    written
        Queues that the job writes, by topic; None: all that there are.
    """
    for operator in (operator for stage in plan.stages for operator in stage.operators):
        if isinstance(operator, ThroughSource):
            clocks = frozenset(plan.clocks_of(operator.parents[0]))
            own = queues if written is None else written[operator.topics[0]]
            for queue in _queues_of(plan, operator, own):
                name = origin_name(operator.name, queue)
                yield TimeOrigin(name, None, frozenset({queue}), follows=clocks)
        elif isinstance(operator, Source):
            behind = operator.allowed_lateness if operator.timestamp == "wall" else None
            for queue in _queues_of(plan, operator, queues):
                yield TimeOrigin(
                    origin_name(operator.name, queue),
                    _timeout(operator.idle_timeout),
                    frozenset({queue}),
                    behind_wall=None if behind is None else milliseconds(behind),
                )
        elif isinstance(operator, SelectTimestamp):
            timeout = _timeout(operator.idle_timeout)
            fed_by = _queues_of(plan, operator, queues)
            if plan.stage_of(operator.name) == 0:
                for queue in fed_by:
                    name = origin_name(operator.name, queue)
                    yield TimeOrigin(name, timeout, frozenset({queue}))
            else:
                for number in range(partitions):
                    name = origin_name(operator.name, str(number))
                    yield TimeOrigin(name, timeout, frozenset(fed_by), direct=False)


def _queues_of(plan: StagePlan, operator: Operator, queues: Iterable[QueueName]) -> list[QueueName]:
    """Return the queues whose messages may reach an operator."""
    sources = plan.sources_of(operator.name)
    topics = {queue: queue.rsplit("@", 2)[0] for queue in queues}
    return [queue for queue, topic in topics.items() if any(s.reads(topic) for s in sources)]


def _timeout(timeout: timedelta | None) -> int | None:
    return None if timeout is None else milliseconds(timeout)


def batch_time(
    origins: Iterable[TimeOrigin],
    record: CommitRecord,
    unread: Collection[QueueName],
    clock: int,
    began: int,
) -> BatchTime:
    """Return what is known of time in a batch that is planned now, on top of a commit.

    Parameters
    ----------
    origins
        Everything that moves event time.
    record
        The commit that the batch builds on.
    unread
        Queues that hold messages which are not committed: whatever is behind them has not been
        silent, it has not been heard yet.
    clock
        Wall clock, ms since 1970.
    began
        When the job was first planned: from there on count origins that have never had a record.
    """
    origins = list(origins)
    seen = {origin.name: record.seen.get(origin.name, began) for origin in origins}
    watermarks = dict(record.watermarks)
    for origin in origins:
        if origin.behind_wall is not None:
            now = clock - origin.behind_wall
            watermarks[origin.name] = max(now, watermarks.get(origin.name, now))
    silent = {
        origin.name
        for origin in origins
        if origin.timeout is not None
        and origin.behind_wall is None
        and _heard_to(origin, record, unread, clock) - seen[origin.name] >= origin.timeout
    }
    silent |= _followers(origins, silent, unread)
    return BatchTime(list(seen), watermarks, [name for name in seen if name in silent], seen)


def _followers(
    origins: Sequence[TimeOrigin], silent: Collection[str], unread: Collection[QueueName]
) -> set[str]:
    """Return the origins that are silent because all whose time they pass on are."""
    followers = [origin for origin in origins if origin.follows]
    speaking = {clock_of(origin.name) for origin in origins if origin.name not in silent}
    found: set[str] = set()
    while True:
        # A topic may be fed by what came through another one.
        more = {
            origin.name
            for origin in followers
            if origin.name not in found
            and origin.queues.isdisjoint(unread)
            and speaking.isdisjoint(origin.follows)
        }
        if not more:
            return found
        found |= more
        quiet = {*silent, *found}
        speaking = {clock_of(origin.name) for origin in origins if origin.name not in quiet}


def _heard_to(
    origin: TimeOrigin, record: CommitRecord, unread: Collection[QueueName], clock: int
) -> int:
    """Return up to when it is known whether an origin was silent."""
    if origin.queues.isdisjoint(unread):
        return clock
    return NEVER if origin.direct else record.clock


def operator_watermark(
    plan: StagePlan,
    operator: Operator,
    clocks: Mapping[str, ClockTime],
    progress: Mapping[str, int],
) -> OperatorWatermark:
    """Return an operator's watermark as a batch finds it, by the clocks and how far it had come."""
    return OperatorWatermark(
        plan.clocks_of(operator.name),
        clocks,
        floor=progress.get(operator.name, NEVER),
        step=plan.time_step,
    )


def is_due(plan: StagePlan, time: BatchTime, record: CommitRecord, clock: int) -> bool:
    """Return whether a batch must happen now, though there is nothing to read.

    It must when a timer by the wall clock is due, or when event time goes on for an operator
    because others fell silent or the wall clock is what its records go by.
    """
    if record.due is not None and record.due <= clock:
        return True
    holding = {state.store for state in record.states if state.count}
    waiting = [
        operator
        for stage in plan.stages
        for operator in stage.operators
        if operator.timed and (not operator.stateful or operator.name in holding)
    ]
    if not waiting:
        return False
    clocks = time.clocks(plan)
    return any(
        operator_watermark(plan, operator, clocks, record.progress).begin() for operator in waiting
    )


def committed_time(record: CommitRecord, summaries: Iterable[Summary]) -> CommitRecord:
    """Put what the tasks of a batch tell about time into its commit record."""
    summaries = list(summaries)
    clock = max(summary.clock for summary in summaries)
    seen = {name: at for summary in summaries for name, at in (summary.seen or {}).items()}
    seen.update((name, clock) for summary in summaries for name in summary.watermarks)
    due = [summary.due for summary in summaries if summary.due is not None]
    moved = {name for summary in summaries for name in summary.watermarks}
    return msgspec.structs.replace(
        record,
        watermarks=_highest(record.watermarks, [summary.watermarks for summary in summaries]),
        progress=_highest(record.progress, [summary.progress for summary in summaries]),
        seen=seen,
        idle=[name for summary in summaries for name in summary.idle if name not in moved],
        clock=clock,
        due=min(due, default=None),
    )


def _highest(last: Mapping[str, int], reports: Iterable[Mapping[str, int]]) -> dict[str, int]:
    highest = dict(last)
    for report in reports:
        for name, time in report.items():
            highest[name] = max(time, highest.get(name, time))
    return highest


# What a batch announces of event time to those behind a topic of the job's own.
#
# A batch announces, in each queue of such a topic, how far event time had come where the topic is
# written, as of the commit that the batch builds on.  All records that this commit and those before
# it let through stand in the topic by then, so none of them comes after the announcement; and since
# the commit knows of every sender, one task speaks for all of them.


def announcements(
    plan: StagePlan, time: BatchTime, record: CommitRecord, *, again: bool = False
) -> dict[str, int]:
    """Return the watermarks that a batch announces, by the operator that writes the topic.

    Parameters
    ----------
    plan
        The topology.
    time
        What is known of time.
    record
        The commit that the batch builds on.
    again
        Whether what was announced before is announced again: a queue may be new.
    """
    found: dict[str, int] = {}
    sinks = [sink for sink in plan.throughs if plan.timed_behind(sink.name)]
    if not sinks:
        return found
    # First those who were silent in the last batch, then those who are now: an announcement
    # that waited for this batch must not be held up by those who have fallen silent meanwhile.
    silences = [replace(time, idle=idle).clocks(plan) for idle in (record.idle, time.idle)]
    for sink in sinks:
        known = record.progress.get(sink.name, NEVER)
        reached = known
        for clocks in silences:
            watermark = operator_watermark(plan, sink, clocks, {sink.name: reached})
            watermark.begin()
            reached = watermark.time
        if reached != NEVER and (reached > known or again):
            found[sink.name] = reached
    return found


def owes_announcement(plan: StagePlan, time: BatchTime, record: CommitRecord) -> bool:
    """Return whether a batch must happen to announce what somebody waits for."""
    holding = {state.store for state in record.states if state.count}
    rising = announcements(plan, time, record)
    return any(_is_awaited(plan, sink, holding) for sink in plan.throughs if sink.name in rising)


def _is_awaited(plan: StagePlan, sink: Through, holding: set[str]) -> bool:
    return any(
        not operator.stateful or operator.name in holding
        for operator in plan.timed_behind(sink.name)
    )
