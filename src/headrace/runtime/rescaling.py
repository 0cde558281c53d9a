"""Another number of partitions for a job: its state moves by the key hash, in one committed step."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.client import Admin
from headrace.errors import ConfigurationError
from headrace.runtime.lease import Lease
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state_steps import StateStep
from headrace.topology.names import commit_topic, state_topic

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.state_home import StateHome

__all__ = ["rescale"]


def rescale(
    home: StateHome,
    partitions: int,
    progress: Callable[[int, int], None] | None = None,
) -> CommitRecord:
    """Move the state of a job to another number of partitions.

    Nothing changes before the one commit at the end; a rescale that fails is as if it had never
    been started.

    Parameters
    ----------
    home
        The job's cluster.
    partitions
        The new number.
    progress
        Told of entries that are done, and of all.

    Raises
    ------
    StateError
        A driver of the job runs, or the job has no state.
    """
    if partitions < 1:
        raise ConfigurationError(f"a job cannot have {partitions} partitions")
    last = home.record()
    owner = f"rescale@{socket.gethostname()}:{os.getpid()}"
    lease = Lease(home.client, home.job, commit_topic(home.job), owner)
    lease.require()
    try:
        return last if last.partitions == partitions else _moved(home, partitions, progress, owner)
    finally:
        lease.release()


def _moved(
    home: StateHome, partitions: int, progress: Callable[[int, int], None] | None, owner: str
) -> CommitRecord:
    record = home.transactions.open(owner).record
    home.transactions.publish(record)
    stores = sorted({state.store for state in record.states} | set(record.stores))
    for store in stores:
        _grow(home, store, max(partitions, record.partitions))
    total = sum(state.count for state in record.states)
    done = 0

    def moved(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    step = StateStep(home, record, partitions, moved)
    kinds = {kind.__name__: processor for kind, processor in PROCESSORS.items()}
    for store in stores:
        kind = kinds.get(record.shapes.get(store, {}).get("operator", ""))
        step.move(store, store, key_of=_same if kind is None else kind.key_of)
    return step.commit(record)


def _grow(home: StateHome, store: str, partitions: int) -> None:
    """Give a state topic enough queues; those beyond a job's partitions stay, empty."""
    if len(home.queues(store)) < partitions:
        Admin(home.client).create_topic(state_topic(home.job, store), queues=partitions)


def _same(entry: bytes) -> bytes:
    return entry
