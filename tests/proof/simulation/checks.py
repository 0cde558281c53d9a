"""What must hold after every commit, and at the end: every record once, all or nothing."""

from __future__ import annotations

from collections import Counter, defaultdict

import msgspec
import pyarrow as pa

from headrace import serdes
from headrace.keys import decode_keys, key_from_properties
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.state.store import decode_entries
from tests.proof.simulation.broker import SimulatedBroker
from tests.proof.simulation.job import COUNTS, DROPPED, IDS, LINES, topology


class ViolationError(AssertionError):
    """Something that must never be."""


class Checks:
    """Looks at a broker's topics: what is new since the last look, against what it knows."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._seen: dict[tuple[str, int], int] = {}
        self.ids: Counter[str] = Counter()
        self._counts: dict[str, int] = defaultdict(int)
        self._state: dict[str, int] = {}
        self.commits: list[CommitRecord] = []
        self._epoch = 0

    def look(self) -> None:
        """Check what has become visible since the last look."""
        for message in self._new(topology.commit_topic):
            self._check_record(msgspec.json.decode(message.body, type=CommitRecord))
        for message in self._new(IDS):
            line = message.body.decode()
            self.ids[line] += 1
            require(self.ids[line] == 1, f"record {line} is visible twice")
        for message in self._new(COUNTS):
            key, count = key_from_properties(message.properties), int(message.body)
            self._counts[key] += 1
            require(
                count == self._counts[key], f"count {count} of {key} comes as {self._counts[key]}."
            )
        for message in self._new(topology.state_topics["count"]):
            self._note_state(message)
        self._check_agreement()

    def finish(self, *, calm: bool) -> None:
        """Check that what arrived late has changed nothing."""
        del calm
        self.look()

    def is_published(self) -> bool:
        """Tell whether all that is committed is in its topics: a commit brings it there."""
        return True

    def _check_record(self, record: CommitRecord) -> None:
        last = self.commits[-1] if self.commits else None
        batch = 0 if last is None else last.batch
        if record.kind == "open":
            require(record.epoch == self._epoch + 1, f"epoch {record.epoch} opens out of order")
            require(record.batch == batch, f"epoch {record.epoch} opens on batch {record.batch}")
            self._epoch = record.epoch
            return
        require(
            record.epoch == self._epoch,
            f"epoch {record.epoch} commits, though epoch {self._epoch} is open",
        )
        require(record.batch == batch + 1, f"batch {record.batch} comes after batch {batch}")
        before = {} if last is None else last.offsets
        for queue, offset in record.offsets.items():
            require(offset >= before.get(queue, 0), f"the offset of {queue} goes back")
        self.commits.append(record)

    def _note_state(self, message: StoredMessage) -> None:
        keys, values = decode_entries(pa.array([message.body], pa.binary()))
        self._state[decode_keys(keys)[0]] = serdes.int.deserialize(values[0])

    def _check_agreement(self) -> None:
        """Output, state and offsets must be those of the same records."""
        record = self.commits[-1] if self.commits else None
        offsets = {} if record is None else record.offsets
        wanted: Counter[str] = Counter()
        for queue, offset in offsets.items():
            topic, _, number = queue.split("@")
            if topic == LINES:
                lines = self._broker.lines(int(number), offset)
                wanted.update(line for line in lines if line[0] != DROPPED)
        require(
            self.ids == wanted,
            f"visible are {sorted(self.ids)}, committed offsets stand for {sorted(wanted)}",
        )
        keys = Counter(line[0] for line in wanted)
        require(self._counts == keys, f"counts are {dict(self._counts)}, not {dict(keys)}")
        require(self._state == keys, f"the state topic holds {self._state}, not {dict(keys)}")
        states = [] if record is None else record.states
        total = sum(state.count for state in states)
        require(total == len(keys), f"the commit says {total} keys of state, not {len(keys)}")

    def _new(self, topic: str) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        for number, queue in enumerate(self._broker.topics[topic]):
            begin = self._seen.get((topic, number), 0)
            found += decode_messages(b"".join(queue.records[begin:]))
            self._seen[topic, number] = len(queue.records)
        return found


def require(condition: object, what: str) -> None:
    if not condition:
        raise ViolationError(what)
