"""What must hold on RocketMQ: nothing uncommitted is ever sent, readers of tags see all once."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec
import pyarrow as pa

from headrace import serdes
from headrace.keys import decode_keys, key_from_properties
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.state.store import decode_entries
from tests.simulation.checks import require
from tests.simulation.job import COUNTS, DROPPED, IDS, LINES, topology
from tests.simulation.rocketmq import SimulatedBroker

_STATE = topology.state_topics["count"]

Place = tuple[str, int]
"""Broker and number of a queue."""


class JournalChecks:
    """Looks at brokers' topics as a reader does who knows tags and the rule of the log."""

    def __init__(self, brokers: list[SimulatedBroker]) -> None:
        self._brokers = {broker.name: broker for broker in brokers}
        self._seen: dict[tuple[str, Place], int] = {}
        #: The highest tag of each key of state, and that of its last message.
        self._newest: dict[tuple[Place, str | None], tuple[int, int]] = {}
        self._last: dict[tuple[Place, str | None], tuple[int, int]] = {}
        self._highest: dict[tuple[str, Place], tuple[int, int]] = defaultdict(lambda: (0, -1))
        self.ids: Counter[str] = Counter()
        self._counts: dict[str, int] = defaultdict(int)
        self._state: dict[str, int] = {}
        #: Epoch, who opened it, and the commits that count.
        self._epoch, self._driver = 0, ""
        self.commits: list[CommitRecord] = []

    def look(self) -> None:
        """Check what has come since the last look."""
        for _, message in self._new(topology.commit_topic):
            self._judge(msgspec.json.decode(message.body, type=CommitRecord))
        for topic, take in ((IDS, self._id), (COUNTS, self._count), (_STATE, self._note)):
            for number, message in self._new(topic):
                if self._is_first(topic, number, message):
                    take(message)

    def hidden(self) -> int:
        """Count the keys of state of which compaction would keep an older value."""
        return sum(self._last[key] < place for key, place in self._newest.items())

    def finish(self) -> None:
        """Check that everything is there."""
        self.look()
        wanted = self._wanted()
        visible = sorted(self.ids.elements())
        require(self.ids == wanted, f"visible are {visible}, not {sorted(wanted.elements())}")
        keys = Counter(line[0] for line in wanted.elements())
        require(self._counts == keys, f"counts are {dict(self._counts)}, not {dict(keys)}")
        require(self._state == keys, f"the state topic holds {self._state}, not {dict(keys)}")

    def stored(self) -> int:
        """Count the lines that are there."""
        return sum(
            len(queue.records)
            for broker in self._brokers.values()
            for queue in broker.topics.get(LINES, ())
        )

    def is_done(self) -> bool:
        """Tell whether all lines are committed, and what they became is in its topics."""
        offsets = self.commits[-1].offsets if self.commits else {}
        if sum(offsets.values()) != self.stored():
            return False
        wanted = self._wanted()
        keys = Counter(line[0] for line in wanted.elements())
        return self.ids == wanted and self._counts == keys and self._state == keys

    def _judge(self, record: CommitRecord) -> None:
        """Follow the rule of the log, written once more."""
        batch = self.commits[-1].batch if self.commits else 0
        if record.kind == "open":
            if record.epoch == self._epoch + 1 and record.batch == batch:
                self._epoch, self._driver = record.epoch, record.driver
        elif (
            record.kind == "commit"
            and (record.epoch, record.driver) == (self._epoch, self._driver)
            and record.batch == batch + 1
        ):
            before = self.commits[-1].offsets if self.commits else {}
            for queue, offset in record.offsets.items():
                require(offset >= before.get(queue, 0), f"the offset of {queue} goes back")
            self.commits.append(record)

    def _is_first(self, topic: str, number: Place, message: StoredMessage) -> bool:
        job, batch, sequence = message.properties["TX"].rsplit(":", 2)
        place = int(batch), int(sequence)
        require(job == topology.name, f"a message of {topic} has the tag of {job}")
        require(
            place[0] <= len(self.commits),
            f"message {place} of {topic} is sent, batch {len(self.commits)} is committed",
        )
        if topic == _STATE:
            key = number, message.keys
            self._last[key] = place
            self._newest[key] = max(place, self._newest.get(key, place))
        if place <= self._highest[topic, number]:
            held_up = self._brokers[number[0]].held_up
            require(
                (topic, number[1], message.properties["TX"]) in held_up,
                f"message {place} of {topic} is there twice, and was not held up",
            )
            return False
        self._highest[topic, number] = place
        return True

    def _id(self, message: StoredMessage) -> None:
        line = message.body.decode()
        self.ids[line] += 1
        require(self.ids[line] <= self._wanted()[line], f"record {line} is visible too often")

    def _count(self, message: StoredMessage) -> None:
        key, count = key_from_properties(message.properties), int(message.body)
        self._counts[key] += 1
        require(count == self._counts[key], f"count {count} of {key} comes as {self._counts[key]}.")

    def _note(self, message: StoredMessage) -> None:
        keys, values = decode_entries(pa.array([message.body], pa.binary()))
        self._state[decode_keys(keys)[0]] = serdes.int.deserialize(values[0])

    def _wanted(self) -> Counter[str]:
        wanted: Counter[str] = Counter()
        for queue, offset in (self.commits[-1].offsets if self.commits else {}).items():
            topic, broker, number = queue.split("@")
            if topic == LINES:
                lines = self._brokers[broker].lines(LINES, int(number), offset)
                wanted.update(line for line in lines if line[0] != DROPPED)
        return wanted

    def _new(self, topic: str) -> list[tuple[Place, StoredMessage]]:
        found: list[tuple[Place, StoredMessage]] = []
        for name, broker in self._brokers.items():
            for number, queue in enumerate(broker.topics.get(topic, ())):
                place = name, number
                begin = self._seen.get((topic, place), 0)
                found += [(place, m) for m in decode_messages(b"".join(queue.records[begin:]))]
                self._seen[topic, place] = len(queue.records)
        return found
