"""What follows a topic, and the state of an operator, while a job writes them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import pyarrow as pa

from headrace.client import Client, MessageQueue, PullConsumer
from headrace.protocol.journal_tags import TAG, Tag, parse_tag
from headrace.protocol.messages import StoredMessage
from headrace.protocol.transactions import CommitRecord, StateSummary
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state.layouts import PlainLayout
from headrace.runtime.state.store import decode_entries, encode_entries
from headrace.runtime.state.views import reader
from headrace.topology import Topology
from headrace.topology.shapes import state_shape

_MODULUS = 1 << 64


class Follower:
    """Gives the messages of a topic that came since the last look, in order by queue.

    On RocketMQ a batch has a tag on each message; those that repeat an earlier one are left out.
    """

    def __init__(self, client: Client, topic: str) -> None:
        self.topic = topic
        self._client = client
        self._consumer = PullConsumer(client)
        self._queues: list[MessageQueue] = []
        self._next: Counter[MessageQueue] = Counter()
        self._highest: dict[MessageQueue, Tag] = {}
        #: Messages that were left out.
        self.repeats = 0

    @property
    def queues(self) -> list[MessageQueue]:
        """All queues: they stay, also while a broker is away."""
        if not self._queues:
            self._queues = sorted(self._client.queues(self.topic))
        return self._queues

    def new(self) -> Iterator[StoredMessage]:
        """Give all that is new."""
        for queue in self.queues:
            yield from self.until(queue)

    def until(self, queue: MessageQueue, end: int | None = None) -> Iterator[StoredMessage]:
        """Give what is new in one queue, or what of it is below an offset."""
        end = self._consumer.end_offset(queue) if end is None else end
        for result in self._consumer.blocks(queue, self._next[queue], end):
            for message in result.messages():
                if message.queue_offset >= end:
                    continue
                if self._repeats(queue, message):
                    self.repeats += 1
                else:
                    yield message
        self._next[queue] = max(end, self._next[queue])

    def _repeats(self, queue: MessageQueue, message: StoredMessage) -> bool:
        tag = tag_of(message)
        if tag is None:
            return False
        highest = self._highest.setdefault(queue, tag)
        self._highest[queue] = max(highest, tag)
        return tag <= highest and highest is not tag


def tag_of(message: StoredMessage) -> Tag | None:
    """Read which message of which batch a message is, on RocketMQ."""
    return parse_tag(message.properties.get(TAG))


class StateFollower:
    """The state of one operator as of one commit after the other."""

    def __init__(self, client: Client, topology: Topology, operator: str, *, by_tags: bool) -> None:
        self._operator = operator
        self._by_tags = by_tags
        self._messages = Follower(client, topology.state_topics[operator])
        known = topology.operator(operator)
        shape = state_shape(known)
        self._layout = (PROCESSORS[type(known)].layout or PlainLayout()).of(shape)
        self._read = reader(known, shape)
        self._entries: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        #: What was read of batches that are not committed yet.
        self._ahead: dict[int, list[StoredMessage]] = defaultdict(list)

    def advance(self, record: CommitRecord) -> Iterator[str]:
        """Go on to a commit; tell where the topic differs from what the commit says."""
        for state in record.states:
            if state.store != self._operator:
                continue
            for message in self._up_to(state, record.batch):
                self._apply(state.partition, message)
            found = self._entries[state.partition]
            if (len(found), _checksum(found)) != (state.count, state.checksum):
                yield f"{state.store}/{state.partition} differs from the count and hash in it"

    def values(self) -> dict[Any, Any]:
        """Give the value of every key."""
        return {
            each.key: each.value
            for entries in self._entries.values()
            for entry, value in entries.items()
            for each in self._layout.shown(entry, value, self._read)
        }

    def _up_to(self, state: StateSummary, batch: int) -> list[StoredMessage]:
        queue = self._messages.queues[state.partition]
        if not self._by_tags:
            return list(self._messages.until(queue, state.end_offset))
        messages = self._ahead[state.partition] + list(self._messages.until(queue))
        self._ahead[state.partition] = [each for each in messages if _batch(each) > batch]
        return [each for each in messages if _batch(each) <= batch]

    def _apply(self, partition: int, message: StoredMessage) -> None:
        # Nothing here deletes: a sum stays.
        (key,), (value,) = decode_entries(pa.array([message.body], pa.binary()))
        self._entries[partition][key] = value


def _batch(message: StoredMessage) -> int:
    tag = tag_of(message)
    assert tag is not None, f"a message without a tag in {message.topic}"
    return tag.batch


def _checksum(entries: Mapping[bytes, bytes]) -> int:
    bodies = encode_entries(list(entries), list(entries.values())).to_pylist()
    return sum(crc32(body) for body in bodies if body) % _MODULUS
