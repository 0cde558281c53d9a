"""The commit topic on RocketMQ: records appended, and read back by the rule of the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import Client, MessageQueue, Producer, PullConsumer
from headrace.durations import format_duration
from headrace.errors import (
    CommitLostError,
    HeadraceError,
    OffsetExpiredError,
    ProtocolError,
    RequestTimeoutError,
    TopicNotFoundError,
)
from headrace.protocol.messages import Message
from headrace.protocol.transactions import (
    CommitReader,
    CommitRecord,
    Verdict,
    check_commit,
    commit_in,
    newest_known,
    record_key,
)
from headrace.runtime.commit.transactions import QueueMessages

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer


# Chunks: messages of the journal topic, each a run of what an attempt stages.
#
# A chunk is an Arrow stream of one batch, the messages of all its sections end to end; the schema's
# metadata says how many of them belong to which queue.

_SECTIONS = b"sections"
_FIXED = 64


class _Section(msgspec.Struct, frozen=True, array_like=True):
    queue: str
    is_state: bool
    count: int


def encode_chunk(sections: list[QueueMessages]) -> bytes:
    """Encode messages of several queues as one body.

    Examples
    --------
    >>> times = np.array([1, 2])
    >>> column = pa.array([b"a", b"b"])
    >>> body = encode_chunk([QueueMessages("t@b@0", column, column, times, is_state=True)])
    >>> [(each.queue, each.is_state, len(each)) for each in decode_chunk(body)]
    [('t@b@0', True, 2)]
    """
    notes = [_Section(each.queue, each.is_state, len(each)) for each in sections]
    batch = pa.record_batch(
        {
            "body": pa.concat_arrays([each.bodies for each in sections]),
            "properties": pa.concat_arrays([each.properties for each in sections]),
            "time": np.concatenate([each.times for each in sections]),
        }
    ).replace_schema_metadata({_SECTIONS: msgspec.json.encode(notes)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode_chunk(body: Buffer) -> Iterator[QueueMessages]:
    """Decode what :func:`encode_chunk` made.

    Raises
    ------
    ProtocolError
        The body is not a chunk.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            batch = reader.read_next_batch()
        notes = msgspec.json.decode(batch.schema.metadata[_SECTIONS], type=list[_Section])
    except (pa.ArrowInvalid, StopIteration, KeyError, TypeError, msgspec.DecodeError) as error:
        raise ProtocolError(f"a message of the journal is no chunk: {error}") from error
    if sum(note.count for note in notes) != len(batch):
        raise ProtocolError("a chunk of the journal does not hold what it says")
    bodies, properties, times = batch.columns
    numbers = times.to_numpy()
    at = 0
    for note in notes:
        part = slice(at, at + note.count)
        at += note.count
        yield QueueMessages(
            note.queue, bodies[part], properties[part], numbers[part], is_state=note.is_state
        )


def size_of(messages: QueueMessages) -> int:
    """Return the bytes that messages take, about."""
    return int(messages.bodies.nbytes + messages.properties.nbytes) + _FIXED * len(messages)


def pieces(messages: QueueMessages, limit: int) -> Iterable[QueueMessages]:
    """Cut messages so that each piece takes at most so many bytes, or is one message.

    >>> column = pa.array([b"x" * 100] * 5)
    >>> run = QueueMessages("t@b@0", column, column, np.arange(5))
    >>> [len(piece) for piece in pieces(run, 600)]
    [2, 2, 1]
    """
    if size_of(messages) <= limit:
        return [messages]
    sizes = pc.add(pc.binary_length(messages.bodies), pc.binary_length(messages.properties))
    ends = np.cumsum(sizes.to_numpy().astype(np.int64) + _FIXED)
    found, begin = [], 0
    while begin < len(messages):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + limit, side="right")))
        found.append(part_of(messages, begin, end))
        begin = end
    return found


def part_of(messages: QueueMessages, begin: int, end: int | None = None) -> QueueMessages:
    """Take the messages from one place to before another."""
    part = slice(begin, end)
    return QueueMessages(
        messages.queue,
        messages.bodies[part],
        messages.properties[part],
        messages.times[part],
        is_state=messages.is_state,
    )


logger = logging.getLogger(__name__)

#: Offset, and the record; None: it deletes older ones.
_Message = tuple[int, CommitRecord | None]

#: How long a stored record may take until readers see it: brokers index what they have stored.
_SHOWN, _SHOWN_POLL = timedelta(seconds=30), 0.002
#: So many messages are looked at for a record that is known to count; and for records to delete.
_NEWEST, _SWEPT = 4, 16
#: How long an append whose answer was lost may still be on its way, in seconds.
_UNDER_WAY = 1.0


class CommitTopic:
    """The commit topic of one job.

    Parameters
    ----------
    client
        Connection to the cluster.
    consumer
        Reads the topic.
    topic
        Its name.
    """

    def __init__(self, client: Client, consumer: PullConsumer, topic: str) -> None:
        self.log = CommitReader()
        self._client = client
        self._consumer = consumer
        self._producer = Producer(client)
        self._topic = topic
        self._reading = threading.Lock()
        #: Where to go on deleting, and the epoch for which nothing is left to delete.
        self._swept = 0
        self._swept_for = 0
        #: Appends of this driver that were not answered.
        self._doubts = 0

    @cached_property
    def queue(self) -> MessageQueue:
        """Its one queue; where each of several brokers has one, the one that holds records."""
        queues = sorted(self._client.queues(self._topic))
        if not queues:
            raise TopicNotFoundError(f"the broker that holds {self._topic} is away")
        ends = self._consumer.end_offsets(queues)
        return next((queue for queue in queues if ends[queue]), queues[0])

    def refresh(self) -> CommitReader:
        """Read what was appended since the last look."""
        with self._reading:
            queue = self.queue
            end = self._consumer.end_offset(queue)
            start = self.log.next_offset or self._consumer.begin_offset(queue)
            if end > start:
                self._feed(queue, start, end)
            elif start and not self.log.next_offset:
                raise _forgotten(self._topic, start)
            elif end < start and self._is_writable(queue):
                raise _lost(self._topic, end, start)
        return self.log

    def _is_writable(self, queue: MessageQueue) -> bool:
        """Return whether a master answers: a follower that stands in for one may lag behind it."""
        route = self._client.route(self._topic, refresh=True)
        return queue in route.writable_queues(self._topic)

    def _feed(self, queue: MessageQueue, first: int, end: int) -> None:
        found, known = self._unread(queue, first, end)
        for offset, record in found:
            if record is None:
                self.log.skip(offset)
            elif self.log.feed(offset, record, counts=offset == known) is Verdict.VOID:
                logger.info("void record of %s: %s", self._topic, _named(record))

    def _unread(self, queue: MessageQueue, first: int, end: int) -> tuple[list[_Message], int]:
        """Read messages, all of them or from the newest record on that is known to count.

        Where some are missing, only the latter is sure to lead to what counts: compaction takes
        out old records, some sooner than others, and none from there on that matters.
        """
        begin = max(first, end - _NEWEST)
        while True:
            found = list(self._messages(queue, begin, end))
            known = newest_known(record for _, record in found)
            if begin == first or known >= begin:
                break
            # All of them only delete older ones, or are of drivers that are late.
            begin = max(first, end - 8 * (end - begin) if known < 0 else known)
        if begin == first and len(found) == end - first:
            return found, -1
        place = next((at for at, (offset, _) in enumerate(found) if offset == known), None)
        if place is not None:
            return found[place:], known
        return list(self._messages(queue, first, end)), -1

    def _messages(self, queue: MessageQueue, start: int, end: int) -> Iterator[_Message]:
        for result in self._consumer.blocks(queue, start, end):
            for message in result.messages():
                if message.queue_offset < end:
                    yield message.queue_offset, commit_in(message)

    def _sweep_some(self) -> None:
        """Delete some of the records that nobody needs any more, whoever appended them.

        Those are the ones that lie before the first record of the epoch before the newest: who
        begins to read finds a record that counts behind them, by the newest open.  A record that
        comes late lies behind the message that deletes its key, and is met again from there.
        """
        epoch = self.log.epoch
        if epoch == self._swept_for:
            return
        try:
            self._sweep(epoch)
        except HeadraceError as error:
            logger.info("old records of %s stay for now: %s", self._topic, error)

    def _sweep(self, epoch: int) -> None:
        queue, record = self.queue, self.log.record
        begin = max(self._swept, 0 if record is None else record.swept)
        begin = begin or self._consumer.begin_offset(queue)
        keys: dict[str, None] = {}
        result = self._consumer.pull(queue, begin, max_messages=_SWEPT)
        end = result.next_offset
        for message in result.messages():
            record = commit_in(message)
            if record is None:
                continue
            if record.epoch + 1 >= epoch:
                end, self._swept_for = message.queue_offset, epoch
                break
            keys[message.keys or ""] = None
        if keys:
            names = pa.array([key.encode() for key in keys], pa.binary())
            empty = pa.array([b""] * len(keys), pa.binary())
            self._producer.send_columns(queue, empty, names, once=True)
        self._swept = max(begin, end)

    def append(self, record: CommitRecord) -> None:
        """Append a record, wait until readers see it, and read up to it.

        After a lost answer the topic is read, and the record appended again, under another key,
        unless it is there or can no longer count.  Before that, some old records are deleted.
        """
        self._sweep_some()
        patience = self._client.settings.retry_timeout.total_seconds()
        deadline = time.monotonic() + patience
        while True:
            try:
                self._append_once(record)
            except HeadraceError as error:
                self._doubts += 1
                if not error.retriable or time.monotonic() > deadline:
                    raise
                logger.warning("appending to %s goes on after: %s", self._topic, error)
                time.sleep(_UNDER_WAY)
            else:
                return
            if self._is_settled(record):
                return

    def again(self) -> None:
        """Count an append that came too late: the next one needs a key of its own."""
        self._doubts += 1

    def _append_once(self, record: CommitRecord) -> None:
        key = record_key(record, self._doubts)
        record = msgspec.structs.replace(
            record, stands_on=self.log.stands_on, swept=max(record.swept, self._swept)
        )
        body = msgspec.json.encode(record)
        if record.kind == "commit":
            check_commit(record, len(body), self._client.settings.max_message_size)
        message = Message(topic=self._topic, body=body, keys=key)
        sent = self._producer.send(message, self.queue, once=True)
        await_shown(self._consumer, {sent.queue: sent.offset + 1})
        self.refresh()

    def _is_settled(self, record: CommitRecord) -> bool:
        """Return whether a record counts, or never will."""
        log = self.refresh()
        if log.epoch != record.epoch:
            return log.epoch > record.epoch
        if log.driver != record.driver or record.kind == "open":
            return True
        return log.closed if record.kind == "close" else log.batch >= record.batch


def await_shown(consumer: PullConsumer, ends: dict[MessageQueue, int]) -> None:
    """Wait until queues show what is stored in them.

    Raises
    ------
    RequestTimeoutError
        They did not, for half a minute.
    """
    deadline = time.monotonic() + _SHOWN.total_seconds()
    while hidden := [q for q, end in consumer.end_offsets(list(ends)).items() if end < ends[q]]:
        if time.monotonic() > deadline:
            raise RequestTimeoutError(
                f"message {ends[hidden[0]] - 1} of {hidden[0]} is stored, but not shown after"
                f" {format_duration(_SHOWN)}",
                hint="look at the broker's log: its consume queues are far behind",
            )
        time.sleep(_SHOWN_POLL)


def _forgotten(topic: str, end: int) -> OffsetExpiredError:
    return OffsetExpiredError(
        f"the {end} records of commit topic '{topic}' are gone: its broker has deleted them, and"
        " nothing says any more what the job has done",
        hint="restore the topic from a replica, or start the job under a new name; commit topics"
        " must be compaction topics (headrace topic create NAME --compaction), from which"
        " retention takes nothing",
    )


def _lost(topic: str, end: int, read: int) -> CommitLostError:
    return CommitLostError(
        f"commit topic '{topic}' ends at offset {end}, and was read up to {read}: its broker has"
        " lost commits, and nobody knows what was published by them",
        hint="promote the replica that has them; a new start goes on from what the topic has now,"
        " and what was published since is there again",
    )


def _named(record: CommitRecord) -> str:
    return f"{record.kind} of epoch {record.epoch}, batch {record.batch}, by {record.driver}"


def clock_ms() -> int:
    """Return the time of this machine's clock, in ms since 1970."""
    return int(time.time() * 1000)
