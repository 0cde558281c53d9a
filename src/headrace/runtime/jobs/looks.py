"""A look at a job: its snapshot, its lag, what it has staged."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.runtime.standing import OperatorStatistics, lag_of, longest, operator_statistics
from headrace.runtime.state.home import StateHome

if TYPE_CHECKING:
    from datetime import timedelta

    from headrace.client import Client, JobStanding
    from headrace.protocol.transactions import CommitRecord, StagedBatch, StateSummary

__all__ = ["JobLook", "StoreSnapshot", "look_at", "snapshot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSnapshot:
    """A state store as a commit has it."""

    partitions: int
    #: Live entries, and bytes of their state messages' bodies.
    entries: int
    size: int
    #: Entries of the partition that has most.
    largest: int
    #: The batch that changed it last.
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLook:
    """A job at one moment, seen from outside."""

    record: CommitRecord
    #: Who opened the epoch; empty where that was not kept.
    driver: str
    #: Who holds the driver's lease; empty where nobody does, so no driver runs.
    holder: str
    #: What waits for a commit.
    staged: list[StagedBatch]
    #: Whether all of the last batch is in its topics; None where nobody has looked.
    published: bool | None
    #: Messages that are not committed, and the age of the oldest; None: its topics are gone.
    lag: int | None
    behind: timedelta | None
    operators: dict[str, OperatorStatistics]
    stores: dict[str, StoreSnapshot]

    @property
    def running(self) -> bool:
        """Whether a driver of the job runs."""
        return bool(self.holder)


def look_at(client: Client, standing: JobStanding, *, closely: bool = False) -> JobLook:
    """Look at a job: at the ends of the queues that it reads.

    Parameters
    ----------
    client
        Connection to the cluster.
    standing
        Where it stands.
    closely
        Look into the topics that it writes, too, for the last batch.
    """
    record = standing.record
    home = StateHome.of(record.job, client)
    try:
        lag = lag_of(home, record)
        published = home.transactions.is_published(record) if closely else None
    finally:
        home.transactions.close()
    return JobLook(
        record=record,
        driver=standing.driver,
        holder=standing.holder,
        staged=standing.staged,
        published=published,
        lag=None if lag is None else sum(queue.messages for queue in lag.values()),
        behind=None if lag is None else longest(lag.values()),
        operators=operator_statistics(record, lag),
        stores=snapshot(record.states),
    )


def snapshot(states: list[StateSummary]) -> dict[str, StoreSnapshot]:
    """Sum up the partitions of each store.

    Examples
    --------
    >>> from headrace.protocol.transactions import StateSummary
    >>> parts = [
    ...     StateSummary(store="words", partition=i, count=10 + i, checksum=0, epoch=1, batch=7,
    ...                  attempt=0, end_offset=20, size=300)
    ...     for i in range(2)
    ... ]
    >>> snapshot(parts)
    {'words': StoreSnapshot(partitions=2, entries=21, size=600, largest=11, batch=7)}
    """
    parts: dict[str, list[StateSummary]] = defaultdict(list)
    for state in states:
        parts[state.store].append(state)
    return {
        store: StoreSnapshot(
            partitions=len(own),
            entries=sum(state.count for state in own),
            size=sum(state.size for state in own),
            largest=max(state.count for state in own),
            batch=max(state.batch for state in own),
        )
        for store, own in sorted(parts.items())
    }
