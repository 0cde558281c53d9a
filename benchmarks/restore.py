"""A store of a million keys, read from its state topic into an empty folder."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from benchmarks.clusters import embedded
from benchmarks.measures import Plan, benchmark
from benchmarks.word_count import word_count
from headrace.client import Admin, Client, Jobs, PullConsumer
from headrace.keys import encode_keys, partitions_of
from headrace.protocol.transactions import CommitRecord, StateSummary
from headrace.runtime.commit.transactions import Attempt, BatchEnd, BrokerTransactions
from headrace.runtime.sinks import state_messages
from headrace.runtime.state.home import StateTopicReader
from headrace.runtime.state.interface import ChangeSet
from headrace.runtime.state.local import LocalCopies
from headrace.runtime.state.store import MemoryStore
from headrace.serdes import pack_int64

if TYPE_CHECKING:
    from benchmarks.sizes import Sizes

__all__ = ["restore"]

#: As many as the cores that the target is about; each is restored in a process of its own.
_PARTITIONS = 2


@benchmark({"restore": "keys/s"})
def restore(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Open the copies of all partitions side by side, as the tasks of a batch do."""
    with embedded() as (address, folder):
        state = _make_state(address, plan.sizes)
        for run in range(plan.runs):
            root = folder / f"state-{run}"
            yield {"restore": plan.sizes.restored_keys / _seconds(state, root, plan.sizes)}
            shutil.rmtree(root)


@dataclass(frozen=True, slots=True)
class _State:
    """Committed state, and where to find it."""

    address: str
    store: str
    topic: str
    queues: list[str]
    record: CommitRecord


def _make_state(address: str, sizes: Sizes) -> _State:
    """Commit what a count of that many words leaves behind, in one transaction."""
    topology = word_count("restore", "lines", "counts")
    ((store, topic),) = topology.state_topics.items()
    with Client(address) as client:
        admin = Admin(client)
        compaction = {"cleanup.policy": "COMPACTION"}
        admin.create_topic(topology.commit_topic, queues=1, attributes=compaction)
        admin.create_topic(topic, queues=_PARTITIONS, attributes=compaction)
        queues = [queue.name for queue in sorted(client.queues(topic))]
        jobs = Jobs(client, topology.commit_topic)
        transactions = BrokerTransactions(jobs, topology.name, topology.commit_topic)
        record = transactions.open("benchmark").record
        parts, states = [], []
        for partition, changes in enumerate(_changes(sizes.restored_keys)):
            attempt = Attempt(
                job=record.job,
                epoch=record.epoch,
                batch=1,
                stage=1,
                partition=partition,
                number=partition,
            )
            writer = transactions.writer(attempt)
            writer.stage(state_messages(queues[partition], changes, int(time.time() * 1000)))
            parts.append(writer.finish())
            states.append(_summary(store, attempt, changes))
        end = CommitRecord(
            job=record.job,
            kind="commit",
            epoch=record.epoch,
            batch=1,
            partitions=_PARTITIONS,
            states=states,
            lineage=[[record.epoch, 1]],
        )
        transactions.commit(BatchEnd(previous=0, parts=parts, record=end))
    return _State(address, store, topic, queues, end)


def _changes(keys: int) -> Iterator[ChangeSet]:
    encoded = encode_keys([f"word{number}" for number in range(keys)])
    counts = pack_int64(np.arange(1, keys + 1)).to_pylist()
    owners = partitions_of(encoded, _PARTITIONS)
    column = pa.array(encoded, pa.binary())
    for partition in range(_PARTITIONS):
        own = np.flatnonzero(owners == partition)
        store = MemoryStore()
        store.put_many(column.take(pa.array(own)).to_pylist(), [counts[i] for i in own.tolist()])
        yield store.change_set()


def _summary(store: str, attempt: Attempt, changes: ChangeSet) -> StateSummary:
    return StateSummary(
        store=store,
        partition=attempt.partition,
        count=changes.count,
        checksum=changes.checksum,
        epoch=attempt.epoch,
        batch=attempt.batch,
        attempt=attempt.number,
        end_offset=len(changes.keys),
    )


def _seconds(state: _State, root: Path, sizes: Sizes) -> float:
    """Restore all partitions; give the time from the first beginning to the last end."""
    patience = sizes.patience.total_seconds()
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(_PARTITIONS)
    pipes = [context.Pipe(duplex=False) for _ in range(_PARTITIONS)]
    processes = [
        context.Process(target=_restore, args=(state, partition, root, barrier, sender, patience))
        for partition, (_, sender) in enumerate(pipes)
    ]
    try:
        for process in processes:
            process.start()
        for _, sender in pipes:
            # Ours goes, so that the end of the process is the end of its pipe.
            sender.close()
        times = [_received(receiver, patience) for receiver, _ in pipes]
    finally:
        for process in processes:
            if process.pid is not None:
                process.join(1.0)
                process.kill()
                process.join()
    return max(end for _, end in times) - min(begin for begin, _ in times)


def _received(receiver: Connection, patience: float) -> tuple[float, float]:
    if not receiver.poll(patience):
        raise TimeoutError(f"a partition was not restored within {patience} s")
    begin, end = receiver.recv()
    return begin, end


def _restore(
    state: _State, partition: int, root: Path, barrier: Barrier, sender: Connection, patience: float
) -> None:
    summary = state.record.states[partition]
    with Client(state.address) as client:
        reader = StateTopicReader(
            PullConsumer(client), {state.store: state.topic}, lambda _: state.queues
        )
        copies = LocalCopies(root, reader)
        client.queues(state.topic)
        barrier.wait(patience)
        begin = time.monotonic()
        copy = copies.open(state.store, partition, summary, state.record.lineage)
        end = time.monotonic()
        copy.close()
    sender.send((begin, end))
