"""State that late repetitions hide from compaction is written again.

A sender that was held up can append a request of an old batch behind newer ones.  Whoever reads a
state topic leaves it out by its tags, but compaction goes by keys, and would keep it instead of
the newer value.  So the driver looks for such messages, and writes the present values of their
keys once more, behind them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client import Client, MessageQueue, Producer, PullConsumer
from headrace.protocol.journal_tags import TAG, FirstCopies, Tag, encode_tags, parse_tags
from headrace.protocol.properties import KEYS, decode_properties, encode_properties
from headrace.runtime.commit.journal.chunks import pieces
from headrace.runtime.commit.transactions import QueueMessages
from headrace.topology.names import state_topic

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.protocol.columns import MessageColumns
    from headrace.protocol.transactions import CommitRecord, QueueName

__all__ = ["StateMender"]

logger = logging.getLogger(__name__)

_REQUEST_BYTES = 1 << 20
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
        """Give the offset of every state queue from which on the next driver has to look."""
        queues = self._queues(record)
        new = [MessageQueue.parse(queue) for queue in queues if queue not in self._clean]
        if new:
            found = self._consumer.end_offsets(new)
            self._clean |= {queue.name: end for queue, end in found.items()}
        return {queue: self._clean[queue] for queue in queues}

    def sent(self, queue: QueueName, first: int, count: int, last: Tag) -> None:
        """Hear where messages of this driver lie: right behind what is clean, or not."""
        clean = self._clean.get(queue)
        if clean == first:
            self._clean[queue] = first + count
            self._highest[queue] = last
        elif clean is not None:
            # Somebody else's are in between.
            self._next = 0.0

    def look(self, record: CommitRecord) -> None:
        """Look what has come since, where it is time to, and make up for repetitions."""
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
        """Find the repetitions in a part of a queue, the last one of each key."""
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
    """Give messages by their keys, as compaction tells them apart."""
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
