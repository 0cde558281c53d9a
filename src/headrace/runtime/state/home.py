"""Where the state of a job lies: its commit topic and its state topics, without its program."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import Client, Jobs, MessageQueue, PullConsumer
from headrace.errors import RequestTimeoutError, StateError, TopicNotFoundError
from headrace.keys import EXACT_KEY, KEYS
from headrace.private import owners_folder
from headrace.protocol.journal_tags import TAG, FirstCopies, parse_tags
from headrace.runtime.commit.journal.transactions import JournalTransactions
from headrace.runtime.commit.transactions import BatchTransactions, BrokerTransactions
from headrace.runtime.state.local import LocalCopies, StateTopicBlock
from headrace.runtime.state.store import decode_entries
from headrace.topology.names import commit_topic, state_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import CommitRecord, QueueName


# Who keeps the local copies of a job's state on this machine.

_FILE = "claim"


@contextlib.contextmanager
def claimed(root: Path) -> Iterator[bool]:
    """Claim a folder of local state for as long as the context lasts, and yield whether it is ours.

    Drivers do without a claim that another process has: epochs and RocksDB's own locks keep two of
    them apart.  A process that only follows a job must have it, as it would take copies back to a
    commit that the driver has gone beyond.  The system ends the claim of a process that dies.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder, claimed(Path(folder)) as first:
    ...     with claimed(Path(folder)) as second:
    ...         print(first, second)
    True False
    """
    import fcntl

    owners_folder(root)
    number = os.open(root / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(number)


# Copies of state that follow a job which runs elsewhere, so that a takeover finds them warm.


class StateFollower:
    """Brings all copies below a folder to the job's last commit, again and again.

    Parameters
    ----------
    home
        The job's committed state.
    stores
        Names of the stores.
    root
        Folder of the copies; nobody else may use it meanwhile.
    """

    def __init__(self, home: StateHome, stores: list[str], root: Path) -> None:
        self._home = home
        self._copies = home.copies(stores, root)
        self._stores = frozenset(stores)
        self._batch = 0

    def follow(self) -> int:
        """Read what was committed since the last call, and return the number of state messages."""
        record = self._home.transactions.plan([], {}, 0, 0).record
        if record is None or record.batch == self._batch:
            return 0
        read = self._bring_up(record)
        self._batch = record.batch
        return read

    def _bring_up(self, record: CommitRecord) -> int:
        read = 0
        for state in record.states:
            if state.store in self._stores:
                copy = self._copies.open(state.store, state.partition, state, record.lineage)
                read += copy.restored
                copy.close()
        return read


# Reading state topics: messages back into entries.

_BLOCK_BYTES = 8 << 20
#: RIP-58 marks a delete by this property where the body may not be empty.
_DELETE_MARKER = "empty_body"


class StateTopicReader:
    """A reader of the entries of state topics, queue by queue.

    Parameters
    ----------
    consumer
        Reads the cluster.
    topics
        Topic of each store.
    queues
        Returns the queues of a topic, in the order of the partitions.
    tags_of
        The job whose tags the messages have, on RocketMQ.  There, offsets count the messages that
        the job published, and a queue may hold more: late repetitions, which are left out.
    """

    def __init__(
        self,
        consumer: PullConsumer,
        topics: Mapping[str, str],
        queues: Callable[[str], Sequence[QueueName]],
        tags_of: str | None = None,
    ) -> None:
        self._consumer = consumer
        self._topics = topics
        self._queues = queues
        self._tags_of = tags_of

    def read(
        self, store: str, partition: int, start: int, end: int, batch: int | None = None
    ) -> Iterator[StateTopicBlock]:
        """Yield the messages of [start, end) in order, none of a batch after ``batch``."""
        queue = MessageQueue.parse(self._queues(self._topics[store])[partition])
        if self._tags_of is not None:
            yield from self._tagged(queue, start, end, batch)
            return
        for result in self._consumer.blocks(queue, start, end, max_bytes=_BLOCK_BYTES):
            yield entries(result.columns().before(end), end)

    def _tagged(
        self, queue: MessageQueue, start: int, end: int, batch: int | None
    ) -> Iterator[StateTopicBlock]:
        """Read on to the queue's end: what the job published may lie behind repetitions."""
        first_copies = FirstCopies()
        stop = self._consumer.end_offset(queue)
        for result in self._consumer.blocks(queue, start, stop, max_bytes=_BLOCK_BYTES):
            columns = result.columns().before(stop)
            tags = parse_tags(columns.property(TAG))
            wanted = first_copies.among(tags)
            if batch is not None:
                wanted &= tags.batch <= batch
            block = entries(columns if wanted.all() else columns.take(wanted), end)
            yield replace(block, next_offset=min(int(columns.queue_offset[-1]) + 1, end))


def entries(columns: MessageColumns, end: int) -> StateTopicBlock:
    """Turn state messages into entries; a delete has the value None."""
    bodies = columns.body
    next_offset = int(columns.queue_offset[-1]) + 1 if len(columns) else end
    properties = columns.property(_DELETE_MARKER)
    live = pc.and_(pc.greater(pc.binary_length(bodies), 0), pc.is_null(properties))
    if pc.all(live).as_py() in (True, None):
        keys, values = decode_entries(bodies)
        return StateTopicBlock(keys, list(values), next_offset)
    return _with_deletes(columns, bodies, live, next_offset)


def _with_deletes(
    columns: MessageColumns, bodies: pa.BinaryArray, live: pa.BooleanArray, next_offset: int
) -> StateTopicBlock:
    found = iter(zip(*decode_entries(pa.concat_arrays([bodies.filter(live)])), strict=True))
    texts = columns.property(KEYS).to_pylist()
    exact = columns.property(EXACT_KEY).to_pylist()
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for index, is_live in enumerate(live.to_pylist()):
        if is_live:
            key, value = next(found)
            keys.append(key)
            values.append(value)
        else:
            keys.append(bytes.fromhex((exact[index] or texts[index]).decode()))
            values.append(None)
    return StateTopicBlock(keys, values, next_offset)


_PATIENCE, _POLL = 30.0, 0.05


def commits_units(client: Client, job: str) -> bool:
    """Return whether a job's batches are units of its one broker.

    Those of a job that has run on several brokers are not, even while only one of them is seen.
    """
    if not client.is_headrace():
        return False
    topic = commit_topic(job)
    try:
        client.route(topic, refresh=True)
    except TopicNotFoundError:
        return True
    queues = client.queues(topic)
    if not queues:
        return False
    # The book of a broker has none of the records that are not units.  They are looked for first: a
    # driver beside this one may commit its first batch in between.
    has_records = any(PullConsumer(client, job).end_offsets(queues).values())
    transactions = _unit_transactions(client, job)
    try:
        record = transactions.plan([], {}, 0, 0).record
    finally:
        transactions.close()
    return not has_records if record is None else not record.driver


def _unit_transactions(client: Client, job: str) -> BrokerTransactions:
    topic = commit_topic(job)
    return BrokerTransactions(Jobs(client, topic), job, topic)


class StateHome:
    """The committed state of one job, as its cluster holds it.

    Parameters
    ----------
    job
        Name of the job.
    client
        Connection to the cluster.
    transactions
        Open, commit and publish on that cluster.
    tagged
        Whether state topics hold messages with tags: on RocketMQ.
    """

    def __init__(
        self, job: str, client: Client, transactions: BatchTransactions, *, tagged: bool
    ) -> None:
        self.job = job
        self.client = client
        self.transactions = transactions
        self.consumer = PullConsumer(client, job)
        self.tagged = tagged

    @classmethod
    def of(cls, job: str, client: Client) -> Self:
        """Return the state of a job on a cluster of either kind."""
        if commits_units(client, job):
            return cls(job, client, _unit_transactions(client, job), tagged=False)
        journal = JournalTransactions(client, PullConsumer(client, job), job)
        return cls(job, client, journal, tagged=True)

    def record(self) -> CommitRecord:
        """Return the job's newest commit record.

        Raises
        ------
        StateError
            The job has committed nothing.
        """
        try:
            record = self.transactions.plan([], {}, 0, 0).record
        except TopicNotFoundError:
            record = None
        if record is None or not record.batch:
            raise StateError(
                f"job '{self.job}' has committed nothing on this cluster",
                hint="look at the name of the job and at the address: headrace topic list shows"
                " the commit topics of all jobs",
            )
        return record

    def published_record(self) -> CommitRecord:
        """Return the newest commit record of which state topics show everything.

        Raises
        ------
        StateError
            The job has committed nothing.
        RequestTimeoutError
            Its last batch is committed, and nobody publishes it.
        """
        deadline = time.monotonic() + _PATIENCE
        while not self.transactions.shows_state(record := self.record()):
            if time.monotonic() > deadline:
                raise RequestTimeoutError(
                    f"batch {record.batch} of job '{self.job}' is committed, and its state is not"
                    " in the state topics yet",
                    hint="its driver has stopped in between: start the job, which finishes it",
                )
            time.sleep(_POLL)
        return record

    def queues(self, store: str, *, refresh: bool = False) -> list[QueueName]:
        """Return the queues of a store's state topic, in the order of the partitions.

        ``refresh`` asks the cluster even where the answer is known.
        """
        topic = state_topic(self.job, store)
        found = self.client.queues(topic, for_="write", refresh=refresh)
        return [queue.name for queue in sorted(found)]

    def end_offset(self, queue: QueueName) -> int:
        """Return one past the last offset of a queue."""
        return self.consumer.end_offset(MessageQueue.parse(queue))

    def copies(self, stores: list[str], root: Path) -> LocalCopies:
        """Open the state stores below a folder, brought up to a commit from their topics."""
        topics = {store: state_topic(self.job, store) for store in stores}
        queues = {topics[store]: self.queues(store, refresh=True) for store in stores}
        job = self.job if self.tagged else None
        return LocalCopies(root, StateTopicReader(self.consumer, topics, queues.__getitem__, job))
