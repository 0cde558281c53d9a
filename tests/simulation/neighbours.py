"""Others who use the broker of a simulated job: they write letters, and read them in a group.

Letters are plain, delayed, or half messages that are shown only when their author says so.  Readers
share the queues, fail, send letters back, and are killed; authors keep a table beside it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal

from msgspec import structs

from headrace.broker.topics import HALF_TOPIC, TIMER_TOPIC
from headrace.client import (
    DEAD_LETTER,
    Admin,
    Client,
    GroupConsumer,
    GroupOptions,
    LocalTransactionState,
    Message,
    Outcome,
    PullConsumer,
    PushConsumer,
    PushOptions,
    Retry,
    StoredMessage,
    TableReader,
    TableWriter,
    TransactionProducer,
)
from headrace.errors import HeadraceError
from headrace.protocol.groups import dead_letter_topic
from headrace.protocol.properties import REAL_TOPIC
from tests.simulation.checks import NewMessages, require
from tests.simulation.threads import persist, sleep
from tests.simulation.world import Process, ViolationError, World

if TYPE_CHECKING:
    from headrace.broker.core import Core

__all__ = ["Neighbours"]

LETTERS, TABLE, AUTHORS, READERS = "letters", "prices", "authors", "readers"
_QUEUES = 2
_KEYS = "pqr"
#: How many readers share the queues.
_MEMBERS = 2
#: How long it may take until all is read once more, s.
_PATIENCE = 30.0
_SOON = timedelta(seconds=0.4)
#: Clocks of brokers tick in milliseconds.
_TICK = 0.002

Kind = Literal["plain", "delayed", "shown", "dropped"]
Group = Literal["push", "orderly", "pull"]


@dataclass
class Letter:
    """One that is written, and what was promised of it."""

    kind: Kind
    #: How long it waits, and until when; zero: not at all.
    delay: float
    not_before: float
    #: Whether the broker has said that it has it.
    is_stored: bool = False


class Neighbours:
    """Authors and readers of letters.

    Parameters
    ----------
    world
        Where they live.
    connect
        Connects to the broker.
    """

    def __init__(self, world: World, connect: Callable[[], Client]) -> None:
        self.failure: ViolationError | None = None
        self._world = world
        self._connect = connect
        self._chance = random.Random(f"{world.seed} letters")
        self._group: Group = self._chance.choice(("push", "orderly", "pull"))
        self._count = self._chance.randint(6, 15)
        self._letters: dict[str, Letter] = {}
        self._is_written = False
        #: What readers have done with, and how often each letter was read.
        self._done: set[str] = set()
        self._tries: dict[str, int] = defaultdict(int)
        #: What lies in the queues, as far as it was seen; and what is done of it.
        self._messages = NewMessages()
        self._queues: dict[int, list[str]] = defaultdict(list)
        self._dead: set[str] = set()
        #: How often a letter lies where it waits for its time, or for its author's word.
        self._parked: Counter[str] = Counter()
        self._table: dict[str, bytes] = {}
        self._author: Process | None = None
        self._readers: dict[int, Process] = {}
        self._is_inspected = self._is_over = False

    def plan(self) -> None:
        """Choose when they come, and when they are killed or stand still."""
        self._world.at(0.3, self._keep)
        for _ in range(self._chance.choice((0, 1, 2, 4))):
            self._world.at(self._chance.uniform(1.0, 8.0), self._strike)

    def _strike(self) -> None:
        alive = [each for each in (self._author, *self._readers.values()) if each and not each.dead]
        if not alive:
            return
        process = self._chance.choice(alive)
        if self._chance.random() < 0.3:
            process.sleep(self._chance.uniform(0.5, 4.0))
        else:
            process.kill()

    def are_done(self) -> bool:
        """Tell whether every letter that must be read is, and all was looked at."""
        return self._is_inspected

    def disagreement(self) -> str:
        """Say what is missing."""
        if not self._is_written:
            return "not all letters are written"
        return f"letters that nobody has read: {self._missing()}" if self._missing() else "no look"

    def _keep(self) -> None:
        """Start who is not there; the last thing is a look at it all."""
        if self._is_inspected:
            return
        if self._author is None or self._author.dead:
            self._author = self._start("author", self._write)
        for number in range(0 if self._is_over else _MEMBERS):
            if number not in self._readers or self._readers[number].dead:
                self._readers[number] = self._start(f"reader{number}", self._read)
        self._world.after(0.5, self._keep)

    def _start(self, name: str, run: Callable[[Client], None]) -> Process:
        process = self._world.process(name, "apart")

        def live() -> None:
            try:
                with self._connect() as client:
                    run(client)
            except HeadraceError as error:
                self._world.tell(f"{name} ends: {error.message[:90]}")
            except ViolationError as error:
                self.failure = self.failure or error
            finally:
                process.kill()

        self._world.start(process, live)
        return process

    # Authors

    def _write(self, client: Client) -> None:
        admin = Admin(client)
        self._persist(partial(admin.create_topic, LETTERS, queues=_QUEUES))
        compacted = {"cleanup.policy": "COMPACTION"}
        self._persist(partial(admin.create_topic, TABLE, queues=1, attributes=compacted))
        with TransactionProducer(client, AUTHORS, self._decide) as producer:
            table = TableWriter(client, TABLE)
            while len(self._letters) < self._count:
                name = str(len(self._letters))
                letter = self._letters[name] = self._letter()
                self._persist(partial(self._send, producer, name, letter))
                letter.is_stored = True
                key = self._chance.choice(_KEYS)
                if self._chance.random() < 0.2:
                    self._persist(partial(table.delete, key))
                else:
                    self._persist(partial(table.put, key, name.encode()))
                sleep(self._world, self._chance.choice((0.0, 0.05, 0.3)))
            self._is_written = True
            while self._missing():
                # Brokers ask it what became of half messages.
                sleep(self._world, 0.2)
            # What was held up on its way is there by then, too.
            sleep(self._world, 5.0)
            if not self._is_over:
                self._persist(partial(self._inspect, client, admin))
                self._have_read_again(admin)
            self._persist(partial(self._close, admin))
            self._is_inspected = True

    def _letter(self) -> Letter:
        kind: Kind = self._chance.choice(("plain", "plain", "delayed", "shown", "dropped"))
        delay = self._chance.uniform(0.1, 1.5) if kind == "delayed" else 0.0
        return Letter(kind, delay, self._world.now + delay - _TICK)

    def _send(self, producer: TransactionProducer, name: str, letter: Letter) -> None:
        message = Message(topic=LETTERS, body=name.encode(), keys=f"letter-{name}")
        if letter.kind == "delayed":
            producer.send(replace(message, delay=timedelta(seconds=letter.delay)))
        elif letter.kind == "plain":
            producer.send(message)
        else:
            half = producer.begin(message)
            letter.is_stored = True
            if self._chance.random() < 0.4:
                # Its author does not say, and is asked.
                half.leave_open()
            elif letter.kind == "dropped":
                half.rollback()
            producer.end(half)

    def _decide(self, message: StoredMessage) -> LocalTransactionState:
        """Say what became of a half message: its kind was chosen before it was sent."""
        if self._letters[message.body.decode()].kind == "shown":
            return LocalTransactionState.COMMIT_MESSAGE
        return LocalTransactionState.ROLLBACK_MESSAGE

    def _persist(self, run: Callable[[], object]) -> None:
        persist(self._world, "the author", run)

    # Readers

    def _read(self, client: Client) -> None:
        if self._group == "pull":
            self._poll(client)
            return
        options = PushOptions(
            start="first",
            orderly=self._group == "orderly",
            concurrency=2,
            max_reconsume_times=3,
            retry_delay=_SOON,
            suspend=_SOON,
            wait=timedelta(seconds=2),
        )
        PushConsumer(client, READERS, [LETTERS], self._listen, options).run()

    def _poll(self, client: Client) -> None:
        options = GroupOptions(start="first", wait=timedelta(seconds=2), max_messages=2)
        with GroupConsumer(client, READERS, [LETTERS], options) as consumer:
            while True:
                for block in consumer.poll():
                    for message in block.messages():
                        self._receive(message)
                        self._done.add(message.body.decode())

    def _listen(self, message: StoredMessage) -> Outcome:
        name = message.body.decode()
        try:
            self._receive(message)
        except ViolationError as error:
            # A listener that raises would only be called again.
            self.failure = self.failure or error
            return None
        sleep(self._world, self._chance.choice((0.0, 0.0, 0.1)))
        luck = self._chance.random()
        if luck < 0.2 and self._tries[name] < 3:
            return Retry()
        if luck < 0.25 and self._group == "push":
            self._dead.add(name)
            return DEAD_LETTER
        self._done.add(name)
        return None

    def _receive(self, message: StoredMessage) -> None:
        name, now = message.body.decode(), self._world.now
        letter = self._letters[name]
        self._tries[name] += 1
        if letter.kind == "dropped":
            raise ViolationError(f"letter {name} is read, which its author took back")
        if now < letter.not_before:
            raise ViolationError(f"letter {name} is read at {now}, before {letter.not_before}")
        if self._group == "orderly" and message.topic == LETTERS:
            before = self._queues[message.queue_id][: message.queue_offset]
            if missing := [each for each in before if each not in self._done]:
                raise ViolationError(f"letter {name} is read before {missing} of its queue")

    # Looking

    def look(self, core: Core) -> None:
        """Take what has become visible, and check what is kept of it."""
        for message in self._messages.take(core, LETTERS):
            self._queues[message.queue_id].append(message.body.decode())
        for topic in (TIMER_TOPIC, HALF_TOPIC):
            parked = self._messages.take(core, topic)
            self._parked.update(
                each.body.decode() for each in parked if each.properties[REAL_TOPIC] == LETTERS
            )
        for message in self._messages.take(core, dead_letter_topic(READERS)):
            name = message.body.decode()
            if name not in self._dead:
                raise ViolationError(f"letter {name} is dead, and nobody has given it up")
            self._done.add(name)
        for message in self._messages.take(core, TABLE):
            if message.body:
                self._table[message.keys or ""] = message.body
            else:
                self._table.pop(message.keys or "", None)

    def _missing(self) -> list[str]:
        """Give the letters that must be read, and are not."""
        return [
            name
            for name, letter in self._letters.items()
            if letter.is_stored and letter.kind != "dropped" and name not in self._done
        ]

    def _inspect(self, client: Client, admin: Admin) -> None:
        """See what an administrator sees: it must be what is there."""
        queues, puller = client.queues(LETTERS), PullConsumer(client)
        ends = puller.end_offsets(queues)
        stats = admin.topic_stats(LETTERS)
        for queue, end in ends.items():
            lines = self._queues[queue.queue_id]
            require(end == len(lines) == stats[queue].end, f"{queue} ends at {end}")
            for offset, name in enumerate(lines):
                found = admin.message(queue, offset)
                require(found.body.decode() == name, f"{queue} has {found.body!r}")
                by_id = admin.message_by_id(LETTERS, found.offset_id)
                require(by_id == found, f"{found.offset_id} is another message")
        there = Counter(name for names in self._queues.values() for name in names)
        for name, letter in self._letters.items():
            if letter.kind in ("delayed", "shown"):
                what = f"letter {name} came {there[name]} times of {self._parked[name]}"
                require(there[name] == self._parked[name], what)
            named = [
                each.body.decode() for each in admin.messages_by_key(LETTERS, f"letter-{name}")
            ]
            is_there = letter.is_stored and letter.kind != "dropped"
            require(set(named) <= {name} and (named or not is_there), f"{name} is {named}")
        require(READERS in admin.groups(), "nobody knows the readers")
        config = structs.replace(admin.group_config(READERS), retry_max_times=7)
        admin.set_group_config(config)
        require(admin.group_config(READERS) == config, "a setting of the group is lost")
        require(len(admin.group_members(READERS)) <= _MEMBERS, "the readers are too many")
        queues_of = {c.read_queue_nums for c in admin.topic_config(LETTERS).values()}
        require(queues_of == {_QUEUES}, f"the topic has {queues_of} queues")
        require(READERS in admin.topic_groups(LETTERS), "nobody reads the letters")
        for queue, progress in admin.group_progress(READERS, LETTERS).items():
            done = self._queues[queue.queue_id][: progress.offset]
            undone = [name for name in done if self._tries[name] == 0]
            require(not undone, f"{undone} of {queue} were never read")
        require(admin.lag(READERS, LETTERS).queues.keys() == set(queues), "no lag")
        require(admin.broker_status("broker-a")["brokerActive"] == "true", "no status")
        require("brokerName" in admin.broker_config("broker-a"), "no config")
        require({LETTERS, TABLE} <= set(admin.topics()), "topics are missing")
        with TableReader(client, TABLE, wait=timedelta(seconds=1)) as table:
            table.caught_up(timedelta(seconds=10))
            require(dict(table.items()) == self._table, f"the table is {dict(table.items())}")

    def _have_read_again(self, admin: Admin) -> None:
        """Set the readers back to the begin: they must read every letter once more."""
        before, visible = dict(self._tries), {name for q in self._queues.values() for name in q}
        self._persist(partial(self._set_back, admin))
        until = self._world.now + _PATIENCE
        while unread := [name for name in visible if self._tries[name] <= before.get(name, 0)]:
            require(self._world.now < until, f"{sorted(unread)} are not read again")
            sleep(self._world, 0.2)

    def _set_back(self, admin: Admin) -> None:
        # A broker that has just started knows of no members, who would go on where they are.
        while len(admin.group_members(READERS)) < _MEMBERS:
            sleep(self._world, 0.2)
        admin.reset_group(READERS, LETTERS, "first")

    def _close(self, admin: Admin) -> None:
        """Send the readers home, and see that nothing of theirs is left."""
        self._is_over = True
        for reader in self._readers.values():
            reader.kill()
        sleep(self._world, 0.5)
        admin.delete_group(READERS)
        require(READERS not in admin.groups(), "the group is there after its deletion")
