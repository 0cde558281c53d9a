"""Feeds the proof job: every message is in its topic once, whatever becomes of the broker."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa

from headrace.client import Admin, Client, ClientSettings, MessageQueue, Producer, PullConsumer
from headrace.errors import HeadraceError
from tests.faults.harness import PATIENT
from tests.faults.proof_pipeline import ACCOUNTS, QUEUES, Names

_PATIENCE = timedelta(minutes=5)
#: Nothing is sent twice by the client: a doubt is settled here.
_ONE_TRY = ClientSettings(request_timeout=_PATIENCE, retry_timeout=timedelta(0))
_KEYS = 16


@dataclass(slots=True)
class Sent:
    """What is in the source topics for certain."""

    ids: set[str] = field(default_factory=set)
    #: Last number of each sequence.
    numbers: dict[str, int] = field(default_factory=dict)
    #: What each account gave and took.
    given: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    messages: int = 0


def make_topics(client: Client, names: Names) -> None:
    """Make the topics that the job reads and writes."""
    for topic in (*names.sources, *names.sinks):
        Admin(client).create_topic(topic, queues=QUEUES)


class ProofFeeder:
    """The only producer of the source topics, in rounds that a seed decides.

    A send whose answer is lost is not repeated blindly: as nobody else writes, the end of the
    queue tells whether it arrived.

    Parameters
    ----------
    namesrv, names
        The cluster, and the topics.
    size
        Ids and transfers per round; each of the sequences goes on by one.
    ahead
        The background thread stays so many messages ahead of the job, at most.
    """

    def __init__(self, namesrv: str, names: Names, *, size: int = 12, ahead: int = 600) -> None:
        self._names = names
        self._size, self._ahead = size, ahead
        self._sender = Client(namesrv, _ONE_TRY)
        self._looker = Client(namesrv, PATIENT)
        self._producer = Producer(self._sender)
        self._consumer = PullConsumer(self._looker, names.job)
        self._chance = random.Random(0)
        self._queues = {topic: sorted(self._looker.queues(topic)) for topic in names.sources}
        queues = [queue for found in self._queues.values() for queue in found]
        self._ends = dict(self._consumer.end_offsets(queues))
        self._rounds = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        #: What was sent; complete once the feeder has stopped.
        self.sent = Sent()

    def feed(self, rounds: int = 1) -> None:
        """Send so many rounds now."""
        for _ in range(rounds):
            self._rounds += 1
            for topic, make in (
                (self._names.ids, self._make_ids),
                (self._names.sequences, self._make_numbers),
                (self._names.transfers, self._make_transfers),
            ):
                shares: dict[MessageQueue, list[str]] = defaultdict(list)
                for number, text in make():
                    queues = self._queues[topic]
                    shares[queues[number % len(queues)]].append(text)
                for queue, texts in shares.items():
                    self._send(queue, texts)

    def start(self) -> None:
        """Send from a thread of its own, a little ahead of the job."""
        self._thread = threading.Thread(target=self._run, name="proof-feeder", daemon=True)
        self._thread.start()

    def stop(self) -> Sent:
        """Finish the round, and end; everything that was sent."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._sender.close()
        self._looker.close()
        if self._failure is not None:
            raise self._failure
        return self.sent

    def _run(self) -> None:
        try:
            while not self._over.wait(0.1):
                read = sum(self._consumer.committed(queue) or 0 for queue in self._ends)
                if self.sent.messages - read < self._ahead:
                    self.feed()
        except Exception as error:
            self._failure = error

    def _make_ids(self) -> list[tuple[int, str]]:
        first = (self._rounds - 1) * self._size
        made = [(number, f"id{number}") for number in range(first, first + self._size)]
        self.sent.ids.update(text for _, text in made)
        return made

    def _make_numbers(self) -> list[tuple[int, str]]:
        self.sent.numbers = {f"key{key}": self._rounds for key in range(_KEYS)}
        return [(key, f"key{key}:{self._rounds}") for key in range(_KEYS)]

    def _make_transfers(self) -> list[tuple[int, str]]:
        made = []
        for number in range(self._size):
            giver, taker = self._chance.sample(range(ACCOUNTS), 2)
            amount = self._chance.randint(1, 100)
            self.sent.given[f"{giver}"] += amount
            self.sent.taken[f"{taker}"] += amount
            made.append((number, f"{giver} {taker} {amount}"))
        return made

    def _send(self, queue: MessageQueue, texts: list[str]) -> None:
        bodies = pa.array([text.encode() for text in texts], pa.binary())
        deadline = time.monotonic() + _PATIENCE.total_seconds()
        wanted = self._ends[queue] + len(texts)
        while True:
            try:
                self._producer.send_columns(queue, bodies)
            except HeadraceError:
                assert time.monotonic() < deadline, f"{queue} cannot be written"
                end = self._settled_end(queue)
                if end == self._ends[queue]:
                    continue
                # A request arrives whole or not at all.
                assert end == wanted, f"{queue} ends at {end} instead of {wanted}"
            break
        self._ends[queue] = wanted
        self.sent.messages += len(texts)

    def _settled_end(self, queue: MessageQueue) -> int:
        """Give the end of a queue after a failure, once it stays where it is."""
        end = -1
        while (found := self._consumer.end_offset(queue)) != end:
            end = found
            time.sleep(0.5)
        return end
