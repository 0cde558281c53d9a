"""What must hold after every commit, and at the end: every record once, all or nothing."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.transactions import CommitRecord
from tests.simulation.job import COUNTS, QUEUES, RESULTS, Line, SimulatedJob
from tests.simulation.world import ViolationError

if TYPE_CHECKING:
    from headrace.broker.core import Core

__all__ = ["Checks", "NewMessages", "require"]


class Checks:
    """Looks at a broker's topics: what is new since the last look, against what it knows."""

    def __init__(self, job: SimulatedJob) -> None:
        self._job = job
        self._outputs = (RESULTS, COUNTS, *job.topology.state_topics.values())
        self.expects = job.expects()
        self._messages = NewMessages()
        self._lines: dict[str, list[list[Line]]] = {
            topic: [[] for _ in range(QUEUES)] for topic in job.inputs
        }
        self.commits: list[CommitRecord] = []
        self._epoch = 0

    def look(self, core: Core) -> None:
        """Check what has become visible since the last look."""
        for message in self._messages.take(core, self._job.topology.commit_topic):
            self._check_record(msgspec.json.decode(message.body, type=CommitRecord))
        for topic in self._outputs:
            for message in self._messages.take(core, topic):
                self.expects.take(topic, message)
        for topic, queues in self._lines.items():
            for message in self._messages.take(core, topic):
                line = Line(message.body.decode(), message.position, "broker-a")
                queues[message.queue_id].append(line)
        if not self.expects.only_at_end:
            wrong = self.disagreement()
            require(wrong is None, wrong or "")

    def disagreement(self) -> str | None:
        """Say what results are not those of the input that is committed."""
        ends = self._ends()
        committed: dict[str, list[list[Line]]] = {}
        for topic, queues in self._lines.items():
            committed[topic] = []
            for number, lines in enumerate(queues):
                end = ends.get(f"{topic}@broker-a@{number}", 0)
                require(
                    end <= len(lines), f"{topic}@{number} is committed to {end} of {len(lines)}"
                )
                committed[topic].append(lines[:end])
        return self.expects.disagreement(committed)

    def is_done(self) -> bool:
        """Tell whether all lines are committed, and all results are there."""
        return (
            self.stored() > 0
            and sum(self._ends().values()) == self.stored()
            and self.disagreement() is None
        )

    def stored(self) -> int:
        """Count the lines that were there at the last look."""
        return sum(len(lines) for queues in self._lines.values() for lines in queues)

    def _ends(self) -> dict[str, int]:
        offsets = self.commits[-1].offsets if self.commits else {}
        return {queue: end for queue, end in offsets.items() if queue.split("@")[0] in self._lines}

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


class NewMessages:
    """Gives what has become visible in topics since it was asked last."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], int] = defaultdict(int)

    def take(self, core: Core, topic: str) -> list[StoredMessage]:
        """Give the messages of a topic that are new, queue by queue."""
        found: list[StoredMessage] = []
        for number in sorted(n for name, n in core.store.queues() if name == topic):
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
