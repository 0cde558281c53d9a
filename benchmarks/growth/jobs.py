"""A job without Spark whose state is real: RocksDB on disk, and compaction logs for its topics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.keys import properties_of_key
from headrace.protocol.properties import encode_properties
from headrace.protocol.records import encode_records
from headrace.protocol.stamps import stamp_records
from headrace.runtime.state.local import LocalCopies, StateTopicBlock
from headrace.runtime.state.store import StoreCopy
from headrace.runtime.testing.job import MemoryJob
from headrace.runtime.testing.topics import Sent
from headrace.store import FileOps
from headrace.store.compaction import CompactionSettings, QueueLog, StoreClock

if TYPE_CHECKING:
    from headrace.protocol.transactions import StateSummary
    from headrace.runtime.commit.transactions import QueueMessages
    from headrace.runtime.control import Control
    from headrace.runtime.state.interface import ChangeSet
    from headrace.runtime.state.store import StateCopies
    from headrace.runtime.testing.job import MemoryWriter, SavedChanges
    from headrace.topology import Topology

__all__ = ["Event", "StoredJob", "stored_job"]

Event = tuple[str, str, int, int]
"""Topic, key, value and event time, ms."""

_LINEAGE = [[1, 1]]


class _NoTopic:
    """Nothing is ever read back: every copy has seen every batch."""

    def read(
        self, store: str, partition: int, start: int, end: int, batch: int | None = None
    ) -> Iterator[StateTopicBlock]:
        del batch
        raise AssertionError(f"{store} {partition} was to be read from its topic, {start} to {end}")


class StoredJob(MemoryJob):
    """Runs batches in this process, on state that is stored as a job on Spark stores it.

    Parameters
    ----------
    topology
        What to run, in one partition.
    folder
        Where the state lies.
    """

    def __init__(self, topology: Topology, folder: Path) -> None:
        super().__init__(topology, 1, {}, 0)
        self._folder = folder
        self._local = LocalCopies(folder / "local", _NoTopic())
        self._logs: dict[str, QueueLog] = {}
        #: Bytes of state messages of each batch, and how long it took, seconds.
        self.written: list[int] = []
        self.seconds: list[float] = []
        #: Results so far.
        self.results = 0

    def send(self, events: Iterable[Event], clock: int = 0) -> None:
        """Run a batch."""
        properties: dict[str, bytes] = {}
        sent = []
        for topic, key, value, at in events:
            if key not in properties:
                properties[key] = encode_properties(properties_of_key(key))
            sent.append(Sent(topic, 0, str(value).encode(), properties[key], at))
        begun = time.perf_counter()
        self.run(sent, clock)
        self.seconds.append(time.perf_counter() - begun)
        self.results += sum(map(len, self.outputs.values()))
        self.outputs.clear()

    @property
    def entries(self) -> int:
        """Entries of all stores, as the commit has them."""
        return sum(summary.count for summary in self._states.values())

    @property
    def local_entries(self) -> int:
        """Entries in RocksDB, as of the last batch."""
        return sum(sum(1 for _ in copy.base.scan()) for copy in self._opened())

    def topic_entries(self) -> int:
        """Compact all state topics, deletes forgotten; count the messages that are left."""
        left = 0
        for log in self._logs.values():
            log.roll()
            left += log.compact(force=True).records_out
        return left

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()

    def _opened(self) -> Iterator[StoreCopy]:
        for (store, partition), summary in self._states.items():
            copy = self._local.open(store, partition, summary, _LINEAGE)
            yield copy
            copy.close()

    def _batch_copies(self, saved: SavedChanges) -> StateCopies:
        return _StoredCopies(self._local, saved)

    def _commit(self, control: Control, writer: MemoryWriter, saved: SavedChanges) -> None:
        super()._commit(control, writer, saved)
        for store, partition in saved.changes:
            # The driver's own copy is not what is measured.
            self._copies.base(store, partition).entries.clear()
        topics = set(self.topology.state_topics.values())
        state = [m for m in writer.staged if m.queue.split("@")[0] in topics]
        self.written.append(sum(messages.bodies.nbytes for messages in state))
        for messages in state:
            self._append(messages)

    def _append(self, messages: QueueMessages) -> None:
        name = messages.queue
        if name not in self._logs:
            settings = CompactionSettings(tombstone_retention=timedelta(0), map_bytes=1 << 30)
            self._logs[name] = QueueLog.open(
                self._folder / "topics" / name, settings, FileOps(), secret=b"g", clock=StoreClock()
            )
        log = self._logs[name]
        bodies, properties = messages.bodies.to_pylist(), messages.properties.to_pylist()
        for first in range(0, len(bodies), 10_000):
            last = first + 10_000
            records = encode_records("state", 0, bodies[first:last], properties[first:last], 0)
            stamp_records(records, log.next_offset, 0, 0, ("127.0.0.1", 0))
            log.append(records)


class _StoredCopies:
    """Copies in RocksDB; what the batch changed is also kept for the job."""

    def __init__(self, local: LocalCopies, saved: SavedChanges) -> None:
        self._local = local
        self._saved = saved

    def open(
        self, store: str, partition: int, summary: StateSummary | None, lineage: list[list[int]]
    ) -> StoreCopy:
        del lineage
        return self._local.open(store, partition, summary, _LINEAGE)

    def save(
        self,
        store: str,
        partition: int,
        attempt: tuple[int, int, int],
        base: StateSummary | None,
        changes: ChangeSet,
    ) -> None:
        self._local.save(store, partition, attempt, base, changes)
        self._saved.changes[store, partition] = changes


@contextmanager
def stored_job(topology: Topology, folder: Path) -> Iterator[StoredJob]:
    """Make a job in a new folder."""
    folder.mkdir(parents=True)
    job = StoredJob(topology, folder)
    try:
        yield job
    finally:
        job.close()
