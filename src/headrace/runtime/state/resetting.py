"""A job begins anew: its offsets and its state are dropped, in one committed step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace.errors import TopicNotFoundError
from headrace.runtime.commit.drivers import DriverName
from headrace.runtime.commit.lease import Lease
from headrace.runtime.state.steps import StateStep
from headrace.topology.names import commit_topic

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.state.home import StateHome

__all__ = ["reset"]


def reset(home: StateHome) -> CommitRecord | None:
    """Drop what a stopped job has read and kept, so that it starts as one that never ran.

    What it wrote stays.  Its batches are numbered on, so that nothing of before is taken for
    something of after.

    Parameters
    ----------
    home
        The job's cluster.

    Returns
    -------
    CommitRecord | None
        The commit of the step; None where the job has committed nothing.

    Raises
    ------
    StateError
        A driver of the job runs.
    """
    try:
        last = home.transactions.plan([], {}, 0, 0).record
    except TopicNotFoundError:
        return None
    if last is None or not last.batch:
        return None
    owner = str(DriverName.here())
    lease = Lease(home.client, home.job, commit_topic(home.job), owner)
    lease.require()
    try:
        return _dropped(home, owner)
    finally:
        home.transactions.close()
        lease.release()


def _dropped(home: StateHome, owner: str) -> CommitRecord:
    record = home.transactions.open(owner).record
    home.transactions.publish(record)
    step = StateStep(home, record, record.partitions)
    for store in sorted({state.store for state in record.states if state.count}):
        step.drop(store)
    begun = msgspec.structs.replace(
        record, offsets={}, watermarks={}, progress={}, seen={}, idle=[], due=None
    )
    return step.commit(begun)
