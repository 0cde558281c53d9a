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
import pyarrow as pa

from headrace.client import Admin, Client, MessageQueue, PullConsumer
from headrace.keys import decode_keys, key_from_properties
from headrace.protocol.commit_log import CommitLog, Verdict
from headrace.protocol.journal_tags import TAG, Tag, parse_tag
from headrace.protocol.messages import StoredMessage
from headrace.protocol.transactions import CommitRecord, StateSummary
from headrace.runtime.state.store import decode_entries, encode_entries
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

    def __init__(self, client: Client, names: Names) -> None:
        topology = proof(names)
        self._embedded = Admin(client).is_headrace()
        self._log = CommitLog()
        #: Valid records of which, on RocketMQ, it is not known yet whether they are published.
        self._waiting: list[CommitRecord] = []
        self._commits = Follower(client, topology.commit_topic)
        self._transfers = Follower(client, names.transfers)
        self._outputs = {op: Follower(client, topic) for op, topic in names.moved.items()}
        self._states = {
            operator: _StateFollower(client, names, operator, by_tags=not self._embedded)
            for operator in (DEBITS, CREDITS)
        }
        self._expected: dict[str, Counter[str]] = {DEBITS: Counter(), CREDITS: Counter()}
        self._published: dict[str, dict[str, int]] = {DEBITS: {}, CREDITS: {}}
        #: The commit topic, oldest first.
        self.history: list[CommitRecord] = []

    def look(self) -> list[str]:
        for message in self._commits.new():
            record = msgspec.json.decode(message.body, type=CommitRecord)
            verdict = self._log.feed(message.queue_offset, record)
            if self._embedded or (verdict is Verdict.VALID and record.kind != "close"):
                self._waiting.append(record)
        # A batch is published before the next one commits.
        known = len(self._waiting) - (0 if self._embedded else 1)
        return self._checked(max(0, known))

    def _checked(self, count: int) -> list[str]:
        due, self._waiting = self._waiting[:count], self._waiting[count:]
        self.history += due
        return _few([problem for record in due for problem in self._check(record)])

    def finish(self, sent: Sent) -> list[str]:
        found = self.look() + self._checked(len(self._waiting))
        found += history_problems(self.history)
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
            yield from (f"{where}: {what}" for what in state.advance(record))
            totals[operator] = state.totals()
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


class _StateFollower:
    """The state of one operator as of one commit after the other."""

    def __init__(self, client: Client, names: Names, operator: str, *, by_tags: bool) -> None:
        topology = proof(names)
        self._operator = operator
        self._by_tags = by_tags
        self._messages = Follower(client, topology.state_topics[operator])
        self._read = reader(topology.operator(operator), {})
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

    def totals(self) -> Counter[str]:
        """Give the value of every account."""
        totals: Counter[str] = Counter()
        for entries in self._entries.values():
            for account, value in zip(decode_keys(list(entries)), entries.values(), strict=True):
                totals[account] = self._read(value, "")
        return totals

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

    def repeats(self) -> int:
        """Count results that are in their topic again: a sender that slept may leave some there."""
        return self.set.results.repeats + self.sequence.results.repeats

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
