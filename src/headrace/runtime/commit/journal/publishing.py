"""Publishing on RocketMQ: what a commit names goes from the journal to its topics, once."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import Admin, Client, MessageQueue, Producer, PullConsumer
from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    JobFailedError,
    NoPermissionError,
    OffsetExpiredError,
    RequestNotSupportedError,
)
from headrace.failpoints import failpoint
from headrace.protocol.journal_tags import TAG, FirstCopies, Tag, encode_tags, parse_tags
from headrace.protocol.messages import Message
from headrace.protocol.properties import KEYS, decode_properties, encode_properties
from headrace.protocol.routes import keeps_newest
from headrace.runtime.commit.journal.topic import await_shown, decode_chunk, part_of, pieces
from headrace.runtime.commit.transactions import QueueMessages
from headrace.topology.names import commit_topic, journal_topic, state_topic

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import CommitRecord, QueueName, StagedPart
    from headrace.settings import JobSettings


# What brokers may delete: a start looks whether a job's own topics are kept as long as it needs.
#
# Commit and state topics are needed for good, so they must be compacted; what is in the journal
# is needed from the first task of a batch until it is published.

logger = logging.getLogger(__name__)

_RESERVED = "fileReservedTime"


def check_retention(
    client: Client, job: str, state_topics: Iterable[str], settings: JobSettings
) -> None:
    """Make sure that brokers keep what a job on RocketMQ needs.

    What an account may not look at is taken to be right.

    Raises
    ------
    ConfigurationError
        A topic of the job loses its messages too soon.
    """
    admin = Admin(client)
    with suppress(NoPermissionError, RequestNotSupportedError):
        for topic in (commit_topic(job), *state_topics):
            _check_compacted(admin, job, topic)
        for broker in sorted({queue.broker for queue in client.queues(journal_topic(job))}):
            _check_journal(admin, job, broker, journal_time(settings))


def journal_time(settings: JobSettings) -> timedelta:
    """Return how long the journal must keep a batch of a job that runs, or is replaced at once.

    It is processed, committed and published, and its driver may be outwaited by another one.

    Examples
    --------
    >>> from headrace.settings import JobSettings
    >>> print(journal_time(JobSettings()))
    0:06:00
    """
    return settings.batch_timeout + 2 * settings.retry_timeout + 2 * settings.lease_expiry


def _check_compacted(admin: Admin, job: str, topic: str) -> None:
    for broker, config in admin.topic_config(topic).items():
        if not keeps_newest(config.attributes):
            raise ConfigurationError(
                f"topic '{topic}' of job '{job}' is no compaction topic on broker '{broker}':"
                " retention would delete what the job needs for good",
                hint="brokers take the policy for new topics only: if the job has never run, delete"
                f" the topic (headrace topic delete {topic}), and its start makes it anew; else"
                " start the job under a new name",
            )


def _check_journal(admin: Admin, job: str, broker: str, needed: timedelta) -> None:
    hours = admin.broker_config(broker).get(_RESERVED, "")
    try:
        kept = float(hours) * 3600
    except ValueError:
        logger.debug("broker %s does not say how long it keeps messages: %r", broker, hours)
        return
    if kept < needed.total_seconds():
        raise ConfigurationError(
            f"broker '{broker}' keeps messages for {hours} h ({_RESERVED}), and a batch of job"
            f" '{job}' may wait for {needed} in the journal topic '{journal_topic(job)}'",
            hint=f"raise {_RESERVED} of the broker (72 by default), above the longest time that the"
            " job may stand still; or lower batch_timeout, retry_timeout and lease_expiry",
        )


# State that late repetitions hide from compaction is written again.
#
# A sender that was held up can append a request of an old batch behind newer ones.  Whoever reads a
# state topic leaves it out by its tags, but compaction goes by keys, and would keep it instead of
# the newer value.  So the driver looks for such messages, and writes the present values of their
# keys once more, behind them.

#: Messages before the place where a look begins: one of them has the highest tag so far.
_LOOK_BACK = 32
#: Pause between two looks at queues that nothing was found wrong with, in seconds.
_PAUSE = 10.0

_Message = tuple[bytes, bytes, int]
"""Body, raw properties and born time."""


class StateMender:
    """Looks for late repetitions in the state topics of a job.

    Parameters
    ----------
    client
        Connection to the cluster.
    consumer
        Reads the topics.
    job
        The job.
    check
        Raises where nothing may be sent any more; asked before every send.
    """

    def __init__(
        self, client: Client, consumer: PullConsumer, job: str, check: Callable[[], None]
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._producer = Producer(client)
        self._job = job
        self._check = check
        #: Offsets below which no repetition is left that was not made up for.
        self._clean: dict[QueueName, int] = {}
        #: The highest tag below them.
        self._highest: dict[QueueName, Tag] = {}
        #: When to look next, by the monotonic clock.
        self._next = 0.0

    def begin(self, record: CommitRecord) -> None:
        """Go on where the driver before this one had looked, as its last commit says."""
        self._clean, self._highest, self._next = {}, {}, 0.0
        known = record.published
        self._clean = {queue: known[queue] for queue in self._queues(record) if queue in known}

    def ends(self, record: CommitRecord) -> dict[QueueName, int]:
        """Return the offset of every state queue from which on the next driver has to look."""
        queues = self._queues(record)
        new = [MessageQueue.parse(queue) for queue in queues if queue not in self._clean]
        if new:
            found = self._consumer.end_offsets(new)
            self._clean |= {queue.name: end for queue, end in found.items()}
        return {queue: self._clean[queue] for queue in queues}

    def sent(self, queue: QueueName, first: int, count: int, last: Tag) -> None:
        """Note where messages of this driver lie: right behind what is clean, or not."""
        clean = self._clean.get(queue)
        if clean == first:
            self._clean[queue] = first + count
            self._highest[queue] = last
        elif clean is not None:
            # Somebody else's are in between.
            self._next = 0.0

    def look(self, record: CommitRecord) -> None:
        """Check what has come since, where it is time to, and make up for repetitions."""
        if time.monotonic() < self._next:
            return
        queues = [MessageQueue.parse(queue) for queue in self.ends(record)]
        for queue, end in self._consumer.end_offsets(queues).items():
            begin = self._clean[queue.name]
            if end > begin:
                late = self._late(queue, begin, end)
                self._clean[queue.name] = end
                if late:
                    self._write_again(queue, late)
        self._next = time.monotonic() + _PAUSE

    def _queues(self, record: CommitRecord) -> list[QueueName]:
        found = []
        for state in record.states:
            topic = state_topic(self._job, state.store)
            queues = sorted(self._client.queues(topic, for_="write"))
            found.append(queues[state.partition].name)
        return found

    def _late(self, queue: MessageQueue, begin: int, end: int) -> dict[bytes, _Message]:
        """Return the repetitions in a part of a queue, the last one of each key."""
        copies, found = FirstCopies(), dict[bytes, _Message]()
        if (highest := self._highest.get(queue.name)) is not None:
            copies.among(parse_tags(pa.array([str(highest).encode()], pa.binary())))
        start = max(begin - _LOOK_BACK, self._consumer.begin_offset(queue))
        for columns in self._read(queue, start, end):
            tags = parse_tags(columns.property(TAG))
            late = ~copies.among(tags) & (columns.queue_offset >= begin)
            found |= _messages(columns, np.flatnonzero(late))
        place = copies.highest(self._job)
        if place is not None:
            self._highest[queue.name] = Tag(self._job, *place)
        return found

    def _write_again(self, queue: MessageQueue, late: dict[bytes, _Message]) -> None:
        """Append the present values of keys, behind every tag that is there."""
        logger.warning(
            "job %s: %d keys of %s have messages that were sent a second time, long after the"
            " first; their present values are written again",
            self._job,
            len(late),
            queue,
        )
        values, copies = dict(late), FirstCopies()
        # What compaction has already taken is made up for by what it has kept instead; a restore
        # compares the whole with the commit.
        begin, end = self._consumer.begin_offset(queue), self._consumer.end_offset(queue)
        wanted = pa.array(list(late), pa.binary())
        for columns in self._read(queue, begin, end):
            first = copies.among(parse_tags(columns.property(TAG)))
            ours = pc.is_in(columns.property(KEYS), wanted)
            picks = first & ours.to_numpy(zero_copy_only=False).astype(bool)
            values |= _messages(columns, np.flatnonzero(picks))
        place = copies.highest(self._job)
        assert place is not None, "repetitions have tags"
        self._send(queue, list(values.values()), Tag(self._job, *place))

    def _send(self, queue: MessageQueue, messages: Sequence[_Message], highest: Tag) -> None:
        bodies, properties, times = zip(*messages, strict=True)
        run = QueueMessages(
            queue.name,
            pa.array(bodies, pa.binary()),
            pa.array(map(_untagged, properties), pa.binary()),
            np.array(times, np.int64),
            is_state=True,
        )
        sequence = highest.sequence + 1
        for piece in pieces(run, _REQUEST_BYTES):
            tagged = encode_tags(piece.properties, self._job, highest.batch, sequence, len(piece))
            self._check()
            results = self._producer.send_columns(
                queue, piece.bodies, properties=tagged, born=int(piece.times[-1]), once=True
            )
            sequence += len(piece)
            for result in results:
                last = Tag(self._job, highest.batch, sequence - 1)
                self.sent(queue.name, result.offset, result.count, last)

    def _read(self, queue: MessageQueue, begin: int, end: int) -> Iterator[MessageColumns]:
        for result in self._consumer.blocks(queue, begin, end):
            yield result.columns().before(end)


def _messages(columns: MessageColumns, rows: npt.NDArray[np.intp]) -> Mapping[bytes, _Message]:
    """Return messages by their keys, as compaction tells them apart."""
    if not len(rows):
        return {}
    places = pa.array(rows)
    keys = columns.property(KEYS).take(places).to_pylist()
    bodies = columns.body.take(places).to_pylist()
    properties = columns.properties.take(places).to_pylist()
    born = columns.born[rows].tolist()
    return dict(zip(keys, zip(bodies, properties, born, strict=True), strict=True))


def _untagged(properties: bytes) -> bytes:
    kept = {name: value for name, value in decode_properties(properties).items() if name != TAG}
    return encode_properties(kept)


#: Chunks that are read at once, while as many are sent: so much of a batch is in memory.
_WINDOW = 8
_THREADS = 8
_REQUEST_BYTES = 1 << 20
#: A chunk is read by itself, however large.
_CHUNK_READ = 8 << 20
#: How long a request whose answer was lost may still be on its way.
_UNDER_WAY = 1.0


def totals(parts: Sequence[StagedPart]) -> Counter[QueueName]:
    """Count the messages of a batch by target queue."""
    found: Counter[QueueName] = Counter()
    for part in parts:
        found.update(part.counts)
    return found


def counted_once(parts: Sequence[StagedPart]) -> list[StagedPart]:
    """Put what all parts hold for each queue into the first, as every task may write to each."""
    counts = dict(totals(parts))
    return [
        msgspec.structs.replace(part, counts={} if number else counts)
        for number, part in enumerate(parts)
    ]


@dataclass(frozen=True, slots=True)
class _QueueRun:
    """Messages for one queue, and the place of the first in its sequence."""

    first: int
    messages: QueueMessages


class Publisher:
    """The one publisher of a job.

    Each target queue gets the messages of a batch in one order, each request after the one before
    it was answered: what is there of a batch is always a beginning of it.

    Parameters
    ----------
    client
        Connection to the cluster.
    consumer
        Reads the journal and the ends of target queues.
    job, journal
        The job and its journal topic.
    check
        Raises where nothing may be sent any more; asked before every send.
    sends_again
        Whether a batch is sent where a queue no longer tells if it was there.
    """

    def __init__(
        self,
        client: Client,
        consumer: PullConsumer,
        job: str,
        journal: str,
        check: Callable[[], None],
        *,
        sends_again: bool = False,
    ) -> None:
        self._client = client
        self._consumer = consumer
        self._producer = Producer(client)
        self._job = job
        self._journal = journal
        self._check = check
        self._sends_again = sends_again
        self._mender = StateMender(client, consumer, job, check)
        self._threads: ThreadPoolExecutor | None = None
        #: Where target queues end, as far as this driver knows.
        self._ends: dict[QueueName, int] = {}
        self._states: set[QueueName] = set()

    def known_ends(self, queues: Sequence[QueueName]) -> dict[QueueName, int]:
        """Return offsets of target queues below which no message of a later batch is."""
        unknown = [MessageQueue.parse(queue) for queue in queues if queue not in self._ends]
        if unknown:
            found = self._consumer.end_offsets(unknown)
            self._ends.update({queue.name: end for queue, end in found.items()})
        return {queue: self._ends[queue] for queue in queues}

    def begin(self, record: CommitRecord) -> None:
        """Go on after the driver before this one, from its last commit."""
        self._mender.begin(record)

    def published(self, record: CommitRecord) -> dict[QueueName, int]:
        """Return what a commit says of the queues that are written.

        From where on to look at them.
        """
        return self.known_ends(list(totals(record.parts))) | self._mender.ends(record)

    def mend(self, record: CommitRecord) -> None:
        """Make up for late repetitions in state topics, once the batch is published."""
        self._mender.look(record)

    def publish(self, record: CommitRecord, *, doubtful: bool) -> None:
        """Bring a committed batch to its topics.

        Parameters
        ----------
        doubtful
            Some of it may be there.
        """
        wanted = totals(record.parts)
        failpoint("journal.publish.begin")
        self._states = set()
        done = self._sent_before(record, wanted) if doubtful else dict.fromkeys(wanted, 0)
        if any(done[queue] < count for queue, count in wanted.items()):
            if doubtful:
                self._check_journal(record)
            self._copy(record, wanted, done)
        states = {MessageQueue.parse(queue): self._ends[queue] for queue in self._states}
        if states:
            # Tasks of the next batch may read them at once.
            await_shown(self._consumer, states)
        failpoint("journal.publish.done")

    def is_published(self, record: CommitRecord, topics: Collection[str] | None = None) -> bool:
        """Return whether some topics show all of a batch; None means all that it is written to."""
        return all(
            self._tail(record, queue) >= count
            for queue, count in totals(record.parts).items()
            if topics is None or MessageQueue.parse(queue).topic in topics
        )

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    @property
    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, "headrace-publish")
        return self._threads

    def _copy(
        self, record: CommitRecord, wanted: Mapping[QueueName, int], done: Mapping[QueueName, int]
    ) -> None:
        sequences: Counter[QueueName] = Counter()
        places = list(_places(record.parts))
        windows = [places[at : at + _WINDOW] for at in range(0, len(places), _WINDOW)]
        reads = self._read(record, windows[0]) if windows else []
        for number in range(len(windows)):
            found = [run for read in reads for run in read.result()]
            # The next ones are read while these are sent.
            last = number + 1 == len(windows)
            reads = [] if last else self._read(record, windows[number + 1])
            shares: dict[QueueName, list[_QueueRun]] = defaultdict(list)
            for messages in found:
                queue = messages.queue
                shares[queue].append(_QueueRun(sequences[queue], messages))
                sequences[queue] += len(messages)
                if messages.is_state:
                    self._states.add(queue)
            sends = [
                self._pool.submit(self._send_all, record, runs, done[queue])
                for queue, runs in shares.items()
            ]
            _finish(sends)
        if sequences != wanted:
            raise JobFailedError(
                f"the journal of job '{self._job}' holds other messages for batch {record.batch}"
                " than its commit names",
                hint="was the journal topic made anew, or written by somebody else?",
            )

    def _read(
        self, record: CommitRecord, places: Sequence[tuple[MessageQueue, int]]
    ) -> list[Future[list[QueueMessages]]]:
        return [self._pool.submit(self._chunk, record, *place) for place in places]

    def _check_journal(self, record: CommitRecord) -> None:
        """Make sure that the journal holds all of a batch, before anything of it is sent."""
        places = list(_places(record.parts))
        queues = {queue for queue, _ in places}
        begins, ends = self._consumer.begin_offsets(queues), self._consumer.end_offsets(queues)
        for queue, offset in places:
            first, end = begins[queue], ends[queue]
            if not first <= offset < end:
                raise self._expired(record, f"{queue} holds {first} to {end}, and not {offset}")

    def _expired(self, record: CommitRecord, what: str) -> OffsetExpiredError:
        return OffsetExpiredError(
            f"job '{self._job}' has committed batch {record.batch}, which is not wholly published,"
            f" and its journal no longer holds the rest: {what}",
            hint="restore the journal topic from a replica, or start the job under a new name;"
            " for the future, raise the brokers' fileReservedTime above the longest time that"
            " the job may stand still",
        )

    def _chunk(self, record: CommitRecord, queue: MessageQueue, offset: int) -> list[QueueMessages]:
        try:
            for result in self._consumer.blocks(queue, offset, offset + 1, max_bytes=_CHUNK_READ):
                for message in result.messages():
                    if message.queue_offset == offset:
                        return list(decode_chunk(message.body))
        except OffsetExpiredError as error:
            raise self._expired(record, error.message) from error
        raise JobFailedError(f"queue {queue} of the journal has no message {offset}")

    def _send_all(self, record: CommitRecord, runs: Sequence[_QueueRun], done: int) -> None:
        for run in runs:
            skipped = min(max(0, done - run.first), len(run.messages))
            first = run.first + skipped
            for piece in pieces(part_of(run.messages, skipped), _REQUEST_BYTES):
                self._send(record, _QueueRun(first, piece))
                first += len(piece)

    def _send(self, record: CommitRecord, run: _QueueRun) -> None:
        """Send a request's worth; after a doubt, what of it did not arrive."""
        deadline = time.monotonic() + self._client.settings.retry_timeout.total_seconds()
        queue, rest = MessageQueue.parse(run.messages.queue), run
        while len(rest.messages):
            self._check()
            try:
                self._send_once(record, queue, rest)
                break
            except HeadraceError as error:
                if not error.retriable or time.monotonic() > deadline:
                    raise
                logger.warning("publishing to %s goes on after: %s", queue, error)
            arrived = max(0, self._arrived(record, queue.name) - rest.first)
            rest = _QueueRun(rest.first + arrived, part_of(rest.messages, arrived))
        failpoint("journal.publish.sent")

    def _send_once(self, record: CommitRecord, queue: MessageQueue, run: _QueueRun) -> None:
        messages = run.messages
        tagged = encode_tags(messages.properties, self._job, record.batch, run.first, len(messages))
        first, *more = self._producer.send_columns(
            queue, messages.bodies, properties=tagged, born=int(messages.times[-1]), once=True
        )
        last, sequence = (more or [first])[-1], run.first
        self._ends[queue.name] = last.offset + last.count
        for result in (first, *more):
            sequence += result.count
            tag = Tag(self._job, record.batch, sequence - 1)
            self._mender.sent(queue.name, result.offset, result.count, tag)

    # After a doubt

    def _sent_before(
        self, record: CommitRecord, queues: Collection[QueueName]
    ) -> dict[QueueName, int]:
        """Count what is there of a batch, by queue."""
        self._settle({MessageQueue.parse(queue).broker for queue in queues})
        return self._tails(record, queues)

    def _arrived(self, record: CommitRecord, queue: QueueName) -> int:
        """Count what is there of a batch in a queue after a request whose answer was lost."""
        time.sleep(_UNDER_WAY)
        self._settle({MessageQueue.parse(queue).broker})
        return self._tail(record, queue)

    def _settle(self, brokers: set[str]) -> None:
        """Wait until brokers show everything that they have stored.

        They show messages in the order in which they store them, of all topics together.
        """
        marks = {}
        for queue in self._journal_queues(brokers).values():
            sent = self._producer.send(Message(topic=self._journal, body=b"\0"), queue)
            marks[queue] = sent.offset + 1
        if marks:
            await_shown(self._consumer, marks)

    def _journal_queues(self, brokers: Collection[str]) -> dict[str, MessageQueue]:
        """Return a queue of the journal on each broker, which has none before it is first doubted."""
        known = self._known_journal()
        if missing := set(brokers) - known.keys():
            Admin(self._client).create_topic(self._journal, 1, brokers=sorted(missing))
            known = self._known_journal()
        return {broker: known[broker] for broker in brokers}

    def _known_journal(self) -> dict[str, MessageQueue]:
        queues = self._client.queues(self._journal, for_="write")
        return {queue.broker: queue for queue in sorted(queues, reverse=True)}

    def _tails(self, record: CommitRecord, queues: Collection[QueueName]) -> dict[QueueName, int]:
        look = partial(self._tail, record)
        return dict(zip(queues, self._pool.map(look, queues), strict=True))

    def _tail(self, record: CommitRecord, name: QueueName) -> int:
        """Count the messages of a batch in a queue: one more than the highest sequence."""
        queue, found = MessageQueue.parse(name), 0
        end = self._consumer.end_offset(queue)
        known, first = record.published.get(name, 0), self._consumer.begin_offset(queue)
        begin = max(known, first)
        if begin < end:
            for result in self._consumer.blocks(queue, begin, end):
                tags = parse_tags(result.columns().property(TAG))
                mine = tags.sequence[tags.of(self._job) & (tags.batch == record.batch)]
                found = max(found, int(mine.max()) + 1 if len(mine) else 0)
        if not found and first > known:
            self._check_tail(record, queue, known, first)
        self._ends[name] = max(end, self._ends.get(name, 0))
        return found

    def _check_tail(
        self, record: CommitRecord, queue: MessageQueue, known: int, first: int
    ) -> None:
        """Refuse to guess whether a batch was in the part of a queue that is deleted.

        State is published again in any case: whoever reads it goes by the tags.
        """
        if queue.topic in {state_topic(self._job, state.store) for state in record.states}:
            return
        what = (
            f"queue {queue} begins at {first}: whether batch {record.batch} of job '{self._job}'"
            f" was published between {known} and there cannot be told any more"
        )
        if self._sends_again:
            logger.warning("%s; it is published now", what)
            return
        raise OffsetExpiredError(
            what,
            hint="start with on_expired_offset='earliest' to have it published now, a second time"
            " for those who have read it, or start the job under a new name; for the future, raise"
            " the brokers' fileReservedTime above the longest time that the job may stand still",
        )


def _places(parts: Sequence[StagedPart]) -> Iterator[tuple[MessageQueue, int]]:
    """Yield the chunks of a batch in the order in which they are published."""
    for part in sorted(parts, key=lambda part: (part.stage, part.partition)):
        queue = MessageQueue.parse(part.journal)
        for offset in part.places:
            yield queue, offset


def _finish(sends: Sequence[Future[None]]) -> None:
    """Wait for all, and raise the first failure: none goes on after that."""
    wait(sends)
    for send in sends:
        send.result()
