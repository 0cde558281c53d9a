"""What must hold on RocketMQ: nothing uncommitted is ever sent, readers of tags see all once."""

from __future__ import annotations

from collections import defaultdict

from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.transactions import CommitRecord, commit_in
from tests.simulation.checks import require
from tests.simulation.job import COUNTS, JOB, QUEUES, RESULTS, Line, SimulatedJob
from tests.simulation.retention import Sources
from tests.simulation.rocketmq import SimulatedBroker

Place = tuple[str, int]
"""Broker and number of a queue."""


class JournalChecks:
    """Looks at brokers' topics as a reader does who knows tags and the rule of the log."""

    def __init__(self, brokers: list[SimulatedBroker], job: SimulatedJob) -> None:
        self._job = job
        self._states = set(job.topology.state_topics.values())
        self.expects = job.expects()
        self._brokers = {broker.name: broker for broker in brokers}
        self.sources = Sources(
            {
                topic: [
                    f"{topic}@{name}@{number}" for name in self._brokers for number in range(QUEUES)
                ]
                for topic in job.inputs
            }
        )
        self._seen: dict[tuple[str, Place], int] = {}
        #: The highest tag of each key of state, and that of its last message.
        self._newest: dict[tuple[str, Place, str | None], tuple[int, int]] = {}
        self._last: dict[tuple[str, Place, str | None], tuple[int, int]] = {}
        self._highest: dict[tuple[str, Place], tuple[int, int]] = defaultdict(lambda: (0, -1))
        #: Epoch, who opened it, and the commits that count.
        self._epoch, self._driver = 0, ""
        self.commits: list[CommitRecord] = []

    def look(self) -> None:
        """Check what has come since the last look."""
        self.look_at_sources()
        for _, message in self._new(self._job.topology.commit_topic):
            if (record := commit_in(message)) is not None:
                self._judge(record)
        for topic in (RESULTS, COUNTS, *sorted(self._states)):
            for number, message in self._new(topic):
                if self._is_first(topic, number, message):
                    self.expects.take(topic, message)

    def hidden(self) -> int:
        """Count the keys of state of which compaction would keep an older value."""
        return sum(self._last[key] < place for key, place in self._newest.items())

    def finish(self) -> None:
        """Check that everything is there."""
        self.look()
        wrong = self.disagreement()
        require(wrong is None, wrong or "")

    def disagreement(self) -> str | None:
        """Say what results are not those of the input that is committed."""
        return self.expects.disagreement(self.sources.committed())

    def is_done(self) -> bool:
        """Tell whether all lines are committed, and what they became is in its topics."""
        return self.sources.are_read() and self.disagreement() is None

    def look_at_sources(self) -> None:
        """Look what lies in the source queues."""
        for (topic, broker, number), source in self.sources.places():
            queues = self._brokers[broker].topics.get(topic)
            queue = None if queues is None else queues[number]
            now = source.stands_for(None if queue is None else id(queue))
            if queue is not None:
                new = decode_messages(b"".join(queue.records[len(now.lines) :]))
                now.lines += [Line(each.body.decode(), each.position, broker) for each in new]
                now.first = queue.first

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
                is_back = queue not in self.sources.queues and offset < before.get(queue, 0)
                require(not is_back, f"the offset of {queue} goes back")
            self.sources.commit(record.offsets)
            self.commits.append(record)

    def _is_first(self, topic: str, number: Place, message: StoredMessage) -> bool:
        job, batch, sequence = message.properties["TX"].rsplit(":", 2)
        place = int(batch), int(sequence)
        require(job == JOB, f"a message of {topic} has the tag of {job}")
        require(
            place[0] <= len(self.commits),
            f"message {place} of {topic} is sent, batch {len(self.commits)} is committed",
        )
        if topic in self._states:
            key = topic, number, message.keys
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

    def _new(self, topic: str) -> list[tuple[Place, StoredMessage]]:
        found: list[tuple[Place, StoredMessage]] = []
        for name, broker in self._brokers.items():
            for number, queue in enumerate(broker.topics.get(topic, ())):
                place = name, number
                begin = self._seen.get((topic, place), 0)
                found += [(place, m) for m in decode_messages(b"".join(queue.records[begin:]))]
                self._seen[topic, place] = len(queue.records)
        return found
