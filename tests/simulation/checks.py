"""What must hold after every commit, and at the end: every record once, all or nothing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.transactions import CommitRecord
from tests.simulation.job import COUNTS, QUEUES, RESULTS, Line, SimulatedJob
from tests.simulation.retention import Sources
from tests.simulation.world import ViolationError

if TYPE_CHECKING:
    from headrace.broker.core import Core

_HOST = ("broker-a", 0)

__all__ = ["Checks", "NewMessages", "require"]


class Checks:
    """Looks at a broker's topics: what is new since the last look, against what it knows."""

    def __init__(self, job: SimulatedJob) -> None:
        self._job = job
        self._outputs = (RESULTS, COUNTS, *job.topology.state_topics.values())
        self.expects = job.expects()
        self._messages = NewMessages()
        self.sources = Sources(
            {t: [f"{t}@broker-a@{number}" for number in range(QUEUES)] for t in job.inputs}
        )
        self.commits: list[CommitRecord] = []
        self._epoch = 0

    def look(self, core: Core) -> None:
        """Check what has become visible since the last look."""
        self._look_at_sources(core)
        for message in self._messages.take(core, self._job.topology.commit_topic):
            self._check_record(msgspec.json.decode(message.body, type=CommitRecord))
        for topic in self._outputs:
            for message in self._messages.take(core, topic):
                # The log of a follower names the host that has written it.
                self.expects.take(topic, replace(message, store_host=_HOST))
        self._look_at_sources(core)
        if not self.expects.only_at_end:
            wrong = self.disagreement()
            require(wrong is None, wrong or "")

    def begin_anew(self) -> None:
        """Forget what the job did, whose topics were deleted: all of its input counts again."""
        for topic, queue in list(self._messages.seen):
            if topic in {
                self._job.topology.commit_topic,
                *self._job.topology.state_topics.values(),
            }:
                del self._messages.seen[topic, queue]
        for source in self.sources.queues.values():
            source.begin_anew()
        self.expects = self._job.expects()
        self.commits = []
        self._epoch = 0

    def disagreement(self) -> str | None:
        """Say what results are not those of the input that is committed."""
        return self.expects.disagreement(self.sources.committed())

    def is_done(self) -> bool:
        """Tell whether all lines are committed, and all results are there."""
        return self.sources.are_read() and self.disagreement() is None

    def _look_at_sources(self, core: Core) -> None:
        self.look_at_bounds(core)
        for (topic, _, number), source in self.sources.places():
            self._messages.seen[topic, number] = len(source.now.lines)
            source.now.lines += [
                Line(each.body.decode(), each.position, "broker-a")
                for each in self._messages.take(core, topic, number)
            ]

    def look_at_bounds(self, core: Core) -> None:
        """Look which source queues there are, and where they begin."""
        for (topic, _, number), source in self.sources.places():
            now = source.stands_for(core.store._catalog.view((topic, number)).birth)
            now.first = core.store.bounds(topic, number).min_offset

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
            is_back = queue not in self.sources.queues and offset < before.get(queue, 0)
            require(not is_back, f"the offset of {queue} goes back")
        self.sources.commit(record.offsets)
        self.commits.append(record)


class NewMessages:
    """Gives what has become visible in topics since it was asked last."""

    def __init__(self) -> None:
        #: Where to look next, by topic and queue.
        self.seen: dict[tuple[str, int], int] = defaultdict(int)

    def take(self, core: Core, topic: str, queue: int | None = None) -> list[StoredMessage]:
        """Give the messages of a topic that are new, queue by queue, or those of one queue."""
        found: list[StoredMessage] = []
        numbers = [n for name, n in core.store.queues() if name == topic and queue in (None, n)]
        for number in sorted(numbers):
            end = core.store.bounds(topic, number).max_offset
            while (at := self.seen[topic, number]) < end:
                result = core.store.read(topic, number, at, max_count=1000, max_bytes=1 << 20)
                found += decode_messages(b"".join(result.slices))
                self.seen[topic, number] = result.next_offset
        return found


def require(condition: object, what: str) -> None:
    """Raise where something does not hold."""
    if not condition:
        raise ViolationError(what)
