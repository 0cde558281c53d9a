"""Three checkers that run against the proof job: while processes die, and when all is done.

Each looks at what is new since its last look, and lists what must not be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from headrace.client import Client, MessageQueue
from headrace.keys import key_from_properties
from headrace.protocol.transactions import CommitReader, CommitRecord, Verdict, commit_in
from headrace.topology import Topology
from tests.faults.proof_feeder import Sent
from tests.faults.proof_followers import Follower, StateFollower
from tests.faults.proof_pipeline import CREDITS, DEBITS, Names
from tests.faults.verification import history_problems

_SHOWN = 5


class Checker(Protocol):
    """Finds what no fault may cause."""

    def look(self) -> list[str]:
        """List what is wrong with what is new."""

    def finish(self, sent: Sent) -> list[str]:
        """List what is missing when the job has caught up with everything that was sent."""


class SetChecker:
    """Every id comes out once: none twice, none that was not sent, none missing."""

    def __init__(self, client: Client, names: Names) -> None:
        self.results = Follower(client, names.counted)
        self._seen: set[str] = set()

    def look(self) -> list[str]:
        found = []
        for message in self.results.new():
            each = key_from_properties(message.properties)
            if each in self._seen:
                found.append(f"{each} was published more than once")
            if message.body != b"1":
                found.append(f"{each} was counted as number {message.body.decode()}")
            self._seen.add(each)
        return _few(found)

    def finish(self, sent: Sent) -> list[str]:
        found = self.look()
        found += [f"{each} is missing" for each in sorted(sent.ids - self._seen)]
        found += [f"{each} was never sent" for each in sorted(self._seen - sent.ids)]
        return _few(found)


class SequenceChecker:
    """The numbers of every key come one by one, for the operator and for readers."""

    def __init__(self, client: Client, names: Names) -> None:
        self.results = Follower(client, names.followed)
        self._last: Counter[str] = Counter()

    def look(self) -> list[str]:
        found = []
        for message in self.results.new():
            key = key_from_properties(message.properties)
            number, step = map(int, msgspec.json.decode(message.body).split(":"))
            if step != 1:
                found.append(f"{key} went by {step} to {number} in the operator's state")
            if number != self._last[key] + 1:
                found.append(f"{key} went from {self._last[key]} to {number} in the topic")
            self._last[key] = number
        return _few(found)

    def finish(self, sent: Sent) -> list[str]:
        found = self.look()
        found += [
            f"{key} ends with {self._last[key]} instead of {number}"
            for key, number in sent.numbers.items()
            if self._last[key] != number
        ]
        return _few(found)


class BankChecker:
    """In every commit record both operators have moved what the input up to there says.

    State is read as of each commit: on an embedded broker the state topics up to the offsets that
    the record names, on RocketMQ their messages of batches up to the record's.  It is also held
    against the count and the hash in the record.
    """

    def __init__(
        self, client: Client, names: Names, topology: Topology, *, journal: bool = False
    ) -> None:
        #: Whether the protocol is that for RocketMQ, which other brokers serve as well.
        self.journal = journal or not client.is_headrace()
        self._log = CommitReader()
        #: Valid records of which, on RocketMQ, it is not known yet whether they are published.
        self._waiting: list[CommitRecord] = []
        self._commits = Follower(client, topology.commit_topic)
        self._transfers = Follower(client, names.transfers)
        self._outputs = {op: Follower(client, topic) for op, topic in names.moved.items()}
        self._states = {
            operator: StateFollower(client, topology, operator, by_tags=self.journal)
            for operator in (DEBITS, CREDITS)
        }
        self._expected: dict[str, Counter[str]] = {DEBITS: Counter(), CREDITS: Counter()}
        self._published: dict[str, dict[str, int]] = {DEBITS: {}, CREDITS: {}}
        #: The commit topic, oldest first.
        self.history: list[CommitRecord] = []

    def look(self) -> list[str]:
        for message in self._commits.new():
            record = commit_in(message)
            if record is None:
                continue
            verdict = self._log.feed(message.queue_offset, record)
            if not self.journal or (verdict is Verdict.VALID and record.kind != "close"):
                self._waiting.append(record)
        return self._checked(_settled(self._waiting) if self.journal else len(self._waiting))

    def _checked(self, count: int) -> list[str]:
        due, self._waiting = self._waiting[:count], self._waiting[count:]
        self.history += due
        return _few([problem for record in due for problem in self._check(record)])

    def finish(self, sent: Sent) -> list[str]:
        found = self.look() + self._checked(len(self._waiting))
        found += history_problems(self.history)
        for operator, wanted in ((DEBITS, sent.given), (CREDITS, sent.taken)):
            if self._states[operator].values() != wanted:
                found.append(f"{operator} at the end are not those of the transfers that were sent")
            for message in self._outputs[operator].new():
                account = key_from_properties(message.properties)
                self._published[operator][account] = int(message.body)
            if self._published[operator] != wanted:
                found.append(f"{operator} as published are not those of the transfers")
        return _few(found)

    def _check(self, record: CommitRecord) -> Iterator[str]:
        where = f"{record.kind} of epoch {record.epoch}, batch {record.batch}"
        self._fold(record.offsets)
        totals = {}
        for operator, state in self._states.items():
            yield from (f"{where}: {what}" for what in state.advance(record))
            totals[operator] = state.values()
            if totals[operator] != self._expected[operator]:
                yield f"{where}: {operator} are not what the transfers below its offsets give"
        given, taken = (sum(totals[operator].values()) for operator in (DEBITS, CREDITS))
        if given != taken:
            yield f"{where}: accounts gave {given} and took {taken}"

    def _fold(self, offsets: Mapping[str, int]) -> None:
        for name, end in offsets.items():
            queue = MessageQueue.parse(name)
            if queue.topic == self._transfers.topic:
                for message in self._transfers.until(queue, end):
                    giver, taker, amount = message.body.decode().split()
                    self._expected[DEBITS][giver] += int(amount)
                    self._expected[CREDITS][taker] += int(amount)


def _settled(records: Sequence[CommitRecord]) -> int:
    """Count the records, from the first on, whose batches are surely published on RocketMQ.

    A batch is published before the next one commits, but an epoch opens before that is done.
    """
    commits = [number for number, record in enumerate(records) if record.kind == "commit"]
    return commits[-1] if commits else 0


def _few(found: list[str]) -> list[str]:
    rest = len(found) - _SHOWN
    return [*found[:_SHOWN], f"and {rest} more"] if rest > 0 else found
