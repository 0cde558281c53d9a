"""Three checkers that run against the proof job: while processes die, and when all is done.

Each looks at what is new since its last look, and lists what must not be.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self
from zlib import crc32

import msgspec

from headrace.client import Client, PullConsumer
from headrace.keys import decode_keys, key_from_properties
from headrace.protocol.messages import StoredMessage
from headrace.protocol.transactions import CommitRecord, StateSummary
from headrace.runtime.state.store import encode_entries
from headrace.runtime.state.topic import StateTopicReader
from headrace.runtime.state.values import reader
from tests.faults.proof_feeder import Sent
from tests.faults.proof_pipeline import CREDITS, DEBITS, Names, proof
from tests.faults.verification import history_problems

_MODULUS = 1 << 64
_SHOWN = 5


class Checker(Protocol):
    """Finds what no fault may cause."""

    def look(self) -> list[str]:
        """List what is wrong with what is new."""

    def finish(self, sent: Sent) -> list[str]:
        """List what is missing when the job has caught up with everything that was sent."""


class _Follower:
    """Gives the messages of a topic that came since the last look, in order by queue."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        self._consumer = PullConsumer(client)
        self._next: dict[int, int] = defaultdict(int)

    def new(self) -> Iterator[StoredMessage]:
        for queue in sorted(self._client.queues(self._topic)):
            yield from self.until(queue.queue_id, self._consumer.end_offset(queue))

    def until(self, number: int, end: int) -> Iterator[StoredMessage]:
        """Give those of one queue below an offset."""
        queue = sorted(self._client.queues(self._topic))[number]
        for result in self._consumer.blocks(queue, self._next[number], end):
            yield from (each for each in result.messages() if each.queue_offset < end)
        self._next[number] = max(end, self._next[number])


class SetChecker:
    """Every id comes out once: none twice, none that was not sent, none missing."""

    def __init__(self, client: Client, names: Names) -> None:
        self._results = _Follower(client, names.counted)
        self._seen: set[str] = set()

    def look(self) -> list[str]:
        found = []
        for message in self._results.new():
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
        self._results = _Follower(client, names.followed)
        self._last: Counter[str] = Counter()

    def look(self) -> list[str]:
        found = []
        for message in self._results.new():
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

    State is read as of each commit: the state topics up to the offsets that the record names,
    also held against the count and the hash in it.
    """

    def __init__(self, client: Client, names: Names) -> None:
        topology = proof(names)
        self._commits = _Follower(client, topology.commit_topic)
        self._transfers = _Follower(client, names.transfers)
        self._outputs = {op: _Follower(client, topic) for op, topic in names.moved.items()}
        self._states = {
            operator: _StateFollower(client, names, operator) for operator in (DEBITS, CREDITS)
        }
        self._expected: dict[str, Counter[str]] = {DEBITS: Counter(), CREDITS: Counter()}
        self._published: dict[str, dict[str, int]] = {DEBITS: {}, CREDITS: {}}
        #: The commit topic, oldest first.
        self.history: list[CommitRecord] = []

    def look(self) -> list[str]:
        found: list[str] = []
        for message in self._commits.new():
            record = msgspec.json.decode(message.body, type=CommitRecord)
            self.history.append(record)
            found += self._check(record)
        return _few(found)

    def finish(self, sent: Sent) -> list[str]:
        found = self.look() + list(history_problems(self.history))
        for operator, wanted in ((DEBITS, sent.given), (CREDITS, sent.taken)):
            if self._states[operator].totals() != wanted:
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
            yield from (f"{where}: {what}" for what in state.advance(record.states))
            totals[operator] = state.totals()
            if totals[operator] != self._expected[operator]:
                yield f"{where}: {operator} are not what the transfers below its offsets give"
        given, taken = (sum(totals[operator].values()) for operator in (DEBITS, CREDITS))
        if given != taken:
            yield f"{where}: accounts gave {given} and took {taken}"

    def _fold(self, offsets: Mapping[str, int]) -> None:
        for name, end in offsets.items():
            topic, _, number = name.rsplit("@", 2)
            if topic == self._transfers._topic:
                for message in self._transfers.until(int(number), end):
                    giver, taker, amount = message.body.decode().split()
                    self._expected[DEBITS][giver] += int(amount)
                    self._expected[CREDITS][taker] += int(amount)


class _StateFollower:
    """The state of one operator as of one commit after the other."""

    def __init__(self, client: Client, names: Names, operator: str) -> None:
        topology = proof(names)
        self._client = client
        self._topic = topology.state_topics[operator]
        self._operator = operator
        self._read = reader(topology.operator(operator), {})
        self._entries: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        self._next: Counter[int] = Counter()

    def advance(self, states: list[StateSummary]) -> Iterator[str]:
        """Go on to a commit; tell where the topic differs from what the commit says."""
        for state in states:
            if state.store != self._operator:
                continue
            self._take(state)
            found = self._entries[state.partition]
            if (len(found), _checksum(found)) != (state.count, state.checksum):
                yield f"{state.store}/{state.partition} differs from the count and hash in it"

    def totals(self) -> Counter[str]:
        """Give the value of every account."""
        totals: Counter[str] = Counter()
        for entries in self._entries.values():
            for account, value in zip(decode_keys(list(entries)), entries.values(), strict=True):
                totals[account] = self._read(value, "")
        return totals

    def _take(self, state: StateSummary) -> None:
        start = self._next[state.partition]
        if start >= state.end_offset:
            return
        queues = [queue.name for queue in sorted(self._client.queues(self._topic))]
        topics = StateTopicReader(
            PullConsumer(self._client), {self._operator: self._topic}, {self._topic: queues}
        )
        entries = self._entries[state.partition]
        for block in topics.read(self._operator, state.partition, start, state.end_offset):
            for key, value in zip(block.keys, block.values, strict=True):
                if value is None:
                    entries.pop(key, None)
                else:
                    entries[key] = value
        self._next[state.partition] = state.end_offset


def _checksum(entries: Mapping[bytes, bytes]) -> int:
    bodies = encode_entries(list(entries), list(entries.values())).to_pylist()
    return sum(crc32(body) for body in bodies if body) % _MODULUS


def _few(found: list[str]) -> list[str]:
    rest = len(found) - _SHOWN
    return [*found[:_SHOWN], f"and {rest} more"] if rest > 0 else found


@dataclass
class Checkers:
    """All three, with a connection of their own."""

    client: Client
    set: SetChecker
    sequence: SequenceChecker
    bank: BankChecker

    @classmethod
    def of(cls, client: Client, names: Names) -> Self:
        """Make the checkers of a job."""
        return cls(
            client,
            SetChecker(client, names),
            SequenceChecker(client, names),
            BankChecker(client, names),
        )

    def by_name(self) -> dict[str, Checker]:
        """Give each under its name."""
        return {"set": self.set, "sequence": self.sequence, "bank": self.bank}

    def look(self) -> list[str]:
        """List what is wrong with what is new."""
        return _named({name: each.look() for name, each in self.by_name().items()})

    def finish(self, sent: Sent) -> list[str]:
        """List what is wrong when the job has caught up."""
        return _named({name: each.finish(sent) for name, each in self.by_name().items()})


def _named(found: Mapping[str, list[str]]) -> list[str]:
    return [f"{name}: {problem}" for name, problems in found.items() for problem in problems]


class Watch:
    """Looks again and again from a thread of its own, until something is wrong."""

    def __init__(self, checkers: Checkers) -> None:
        self._checkers = checkers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proof-watch", daemon=True)
        self._failure: Any = None
        self.looks = 0
        #: What was found; nothing is looked at after that.
        self.problems: list[str] = []

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, if it ever began; raises what a look met or found."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        assert self.problems == []

    def _run(self) -> None:
        try:
            while not self.problems and not self._over.wait(0.5):
                self.problems = self._checkers.look()
                self.looks += 1
        except Exception as error:
            self._failure = error
