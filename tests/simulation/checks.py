"""What must hold after every commit, and at the end: every record once, all or nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from headrace import serdes
from headrace.keys import decode_keys, key_from_properties
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.state.store import decode_entries
from tests.simulation.job import COUNTS, DROPPED, IDS, LINES, QUEUES, topology
from tests.simulation.world import ViolationError

if TYPE_CHECKING:
    from headrace.broker.core import Core

__all__ = ["Checks", "require"]


class Checks:
    """Looks at a broker's topics: what is new since the last look, against what it knows."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], int] = defaultdict(int)
        self._lines: dict[int, list[str]] = defaultdict(list)
        self.ids: Counter[str] = Counter()
        self._counts: dict[str, int] = defaultdict(int)
        self._state: dict[str, int] = {}
        self.commits: list[CommitRecord] = []
        self._epoch = 0

    def look(self, core: Core) -> None:
        """Check what has become visible since the last look."""
        for message in self._new(core, topology.commit_topic, 1):
            self._check_record(msgspec.json.decode(message.body, type=CommitRecord))
        for message in self._new(core, IDS, QUEUES):
            self.ids[message.body.decode()] += 1
        for message in self._new(core, COUNTS, QUEUES):
            key, count = key_from_properties(message.properties), int(message.body)
            self._counts[key] += 1
            require(
                count == self._counts[key], f"count {count} of {key} comes as {self._counts[key]}."
            )
        for message in self._new(core, topology.state_topics["count"], 8):
            self._note_state(message)
        for message in self._new(core, LINES, QUEUES):
            self._lines[message.queue_id].append(message.body.decode())
        self._check_agreement()

    def is_done(self) -> bool:
        """Tell whether all lines are committed."""
        if not self.commits:
            return False
        ends = {int(queue.split("@")[2]): end for queue, end in self._ends().items()}
        return all(ends.get(number, 0) == len(lines) for number, lines in self._lines.items())

    def stored(self) -> int:
        """Count the lines that were there at the last look."""
        return sum(map(len, self._lines.values()))

    def _ends(self) -> dict[str, int]:
        return self.commits[-1].offsets if self.commits else {}

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
        wanted: Counter[str] = Counter()
        for queue, offset in self._ends().items():
            topic, _, number = queue.split("@")
            if topic == LINES:
                lines = self._lines[int(number)]
                require(offset <= len(lines), f"{queue} is committed to {offset} of {len(lines)}")
                wanted.update(line for line in lines[:offset] if line[0] != DROPPED)
        require(
            self.ids == wanted,
            f"visible are {sorted(self.ids.elements())}, committed offsets stand for"
            f" {sorted(wanted.elements())}",
        )
        keys = Counter(line[0] for line in wanted.elements())
        require(self._counts == keys, f"counts are {dict(self._counts)}, not {dict(keys)}")
        require(self._state == keys, f"the state topic holds {self._state}, not {dict(keys)}")
        record = self.commits[-1] if self.commits else None
        states = [] if record is None else record.states
        total = sum(state.count for state in states)
        require(total == len(keys), f"the commit says {total} keys of state, not {len(keys)}")

    def _new(self, core: Core, topic: str, queues: int) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        for number in range(queues):
            end = core.store.bounds(topic, number).max_offset
            while (at := self._seen[topic, number]) < end:
                result = core.store.read(topic, number, at, max_count=1000, max_bytes=1 << 20)
                found += decode_messages(b"".join(result.slices))
                self._seen[topic, number] = result.next_offset
        return found


def require(condition: object, what: str) -> None:
    """Raise where something does not hold."""
    if not condition:
        raise ViolationError(what)
