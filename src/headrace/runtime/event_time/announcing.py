"""What a batch announces of event time to those behind a topic of the job's own.

A batch announces, in each queue of such a topic, how far event time had come where the topic is
written, as of the commit that the batch builds on.  All records that this commit and those before
it let through stand in the topic by then, so none of them comes after the announcement; and since
the commit knows of every sender, one task speaks for all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.runtime.chunk import NEVER
from headrace.runtime.event_time.silence import operator_watermark

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.event_time.silence import BatchTime
    from headrace.topology import StagePlan
    from headrace.topology.operators.through import Through

__all__ = ["announcements", "owes_announcement"]


def announcements(
    plan: StagePlan, time: BatchTime, record: CommitRecord, *, again: bool = False
) -> dict[str, int]:
    """Give the watermarks that a batch announces, by the operator that writes the topic.

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
    # Who was silent in the last batch, then who is now: an announcement that waited for this
    # batch must not be held up by those who have fallen silent meanwhile.
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
    """Tell whether a batch must happen to announce what somebody waits for."""
    holding = {state.store for state in record.states if state.count}
    rising = announcements(plan, time, record)
    return any(_is_awaited(plan, sink, holding) for sink in plan.throughs if sink.name in rising)


def _is_awaited(plan: StagePlan, sink: Through, holding: set[str]) -> bool:
    return any(
        not operator.stateful or operator.name in holding
        for operator in plan.timed_behind(sink.name)
    )
