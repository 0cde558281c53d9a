"""The commit protocol on a stock RocketMQ: journal, order of the log, publish, lease.

The commit topic is a log to which anybody can append at any time; what counts is decided by
reading it in order.  Output goes to its queue message by message, after the commit.  Time shows
only in what it does: a lease that runs out, a send that arrives after its sender gave it up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.proof.model.embedded import Item, Items, Mark

Mutation = Literal[
    "",
    "void commit of an older epoch taken for valid",
    "a late repetition of an older batch counts again",
    "published before the commit record was read back",
    "every staged attempt is published",
    "last batch of the driver before is not published",
    "next batch planned before the last one is published",
    "order of publishing not kept",
    "no tags in the committed reader",
    "tail of the target queue not read at the start",
    "tail of the target queue not read after a doubtful send",
    "successor does not wait for the lease",
    "lease not asked before a send",
    "closed before the last batch is published",
    "compaction lets a void record replace a valid one",
    "a repeated record has the key of the first",
    "epoch read again after the decision not to wait",
]


class Record(NamedTuple):
    """A record of the commit topic."""

    kind: str
    epoch: int
    driver: int
    mark: Mark = (0, 0, 0)
    begin: int = 0
    end: int = 0
    #: State as the task saw it, with its own changes.
    state: Items = ()
    #: How many appends of its driver have had no answer so far.
    doubts: int = 0

    @property
    def batch(self) -> int:
        return self.mark[1]

    @property
    def content(self) -> Record:
        return self._replace(doubts=0)


class Message(NamedTuple):
    """A message of the target queue with its tag: batch and sequence."""

    batch: int
    sequence: int
    item: Item
    epoch: int
    #: Whether its sender held that it had the lease.
    leased: bool = True
    #: It came after its sender had given it up, or lost the lease: a pause in mid-send.
    late: bool = False

    @property
    def tag(self) -> tuple[int, int]:
        return self.batch, self.sequence


class Driver(NamedTuple):
    """A driver: where it is, and what it goes by."""

    name: int
    at: str = "starts"
    epoch: int = 0
    batch: int = 0
    begin: int = 0
    end: int = 0
    attempt: int = 0
    #: What the last commit has to publish, and how many of them are known to be there.
    output: Items = ()
    known: int = 0
    #: Whether it holds that it has the lease, by its own clock.
    lease: bool = False
    #: Appends to the commit topic that had no answer.
    doubts: int = 0
    sent: Record | Message | None = None


class World(NamedTuple):
    """All there is."""

    drivers: tuple[Driver, ...]
    faults: int
    takeovers: int
    failures: int
    delays: int
    compactions: int
    #: Who holds the lock on the commit topic, 0: nobody; in the broker's memory.
    lock: int = 0
    log: tuple[Record, ...] = ()
    #: What the log says by its order when nothing of it is compacted, kept aside to compare.
    epoch: int = 0
    commits: tuple[Record, ...] = ()
    outputs: tuple[Items, ...] = ()
    staged: frozenset[tuple[Mark, Items]] = frozenset()
    queue: tuple[Message, ...] = ()
    net: frozenset[Record | Message] = frozenset()


class Judged(NamedTuple):
    """What somebody who reads the log holds to be valid."""

    epoch: int = 0
    driver: int = 0
    closed: bool = False
    commits: tuple[Record, ...] = ()

    @property
    def last(self) -> Record:
        return self.commits[-1] if self.commits else Record("commit", 0, 0)


@dataclass(frozen=True)
class RocketMQModel:
    """A few records, drivers that die or sleep, sends that arrive late, twice or never in time."""

    mutation: Mutation = ""
    records: int = 2
    #: Deaths of drivers, locks that a broker forgets, ends in order; drivers that start beside
    #: another; failed attempts; late or doubled sends; rounds of compaction.
    faults: int = 1
    takeovers: int = 1
    failures: int = 0
    delays: int = 1
    compactions: int = 0

    def first(self) -> World:
        return World(
            (Driver(1),),
            self.faults,
            self.takeovers,
            self.failures,
            self.delays,
            self.compactions,
        )

    def finished(self, world: World) -> bool:
        done = bool(world.commits) and world.commits[-1].end == self.records
        return done and len(self._seen(world)) == self.records

    # What must hold.

    def wrong(self, before: World, after: World) -> str | None:
        if len(after.queue) > len(before.queue) and (found := self._wrong_queue(after)):
            return found
        if len(after.commits) > len(before.commits):
            last = after.commits[-1]
            if last.state != (expected := _expected(after)):
                return f"the state of batch {last.batch} is {last.state}, not {expected}"
        if after.log != before.log:
            last, held = self._judge(after.log).last, Judged(commits=after.commits).last
            if last.content != held.content:
                return (
                    f"by the log the last commit is batch {last.batch} of epoch {last.epoch}, but"
                    f" batch {held.batch} was committed"
                )
        return None

    def _wrong_queue(self, world: World) -> str | None:
        new = world.queue[-1]
        committed = new.batch <= len(world.outputs) and new.sequence < len(
            world.outputs[new.batch - 1]
        )
        if not committed or world.outputs[new.batch - 1][new.sequence] != new.item:
            return f"a message shows record {new.item[0]} by {new.item[1]}: not committed"
        same = [message for message in world.queue if message.tag == new.tag]
        if len(same) > 1 and not any(message.late for message in same):
            return f"message {new.tag} is there twice, and no send of it was held up"
        seen, expected = self._seen(world), _expected(world)
        if seen != expected[: len(seen)]:
            return f"the committed reader got {_told(seen)}, committed is {_told(expected)}"
        return None

    def _seen(self, world: World) -> Items:
        """What the committed reader gives: each tag once, in order, and only what is committed."""
        seen: list[Item] = []
        highest = (0, 0)
        for message in world.queue:
            if message.batch > len(world.commits):
                break
            if message.tag > highest or not seen or self.mutation.startswith("no tags"):
                seen.append(message.item)
                highest = message.tag
        return tuple(seen)

    def _judge(self, log: tuple[Record, ...]) -> Judged:
        """Read the log in order: who has the job, and which commits count."""
        judged = Judged()
        any_epoch = self.mutation == "void commit of an older epoch taken for valid"
        any_batch = self.mutation == "a late repetition of an older batch counts again"
        for record in log:
            if record.kind == "open":
                # After compaction the first records may be of a later epoch.
                if record.epoch > judged.epoch:
                    judged = judged._replace(epoch=record.epoch, driver=record.driver, closed=False)
            elif record.kind == "close":
                closed = judged.closed or record.epoch == judged.epoch
                judged = judged._replace(closed=closed)
            elif (any_epoch or record.epoch >= judged.epoch) and (
                any_batch or record.batch > judged.last.batch
            ):
                # Who commits has read that its open is valid.  That open may stand behind: it
                # was repeated, and compaction has kept its last copy.
                commits = (*judged.commits, record)
                if record.epoch > judged.epoch:
                    judged = Judged(record.epoch, record.driver)
                judged = judged._replace(commits=commits)
        return judged

    # What may happen.

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._arrivals(world)
        yield from self._surroundings(world)
        for driver in world.drivers:
            if world.faults:
                yield (
                    f"driver {driver.name} dies",
                    _gone(world, driver)._replace(faults=world.faults - 1),
                )
            if driver.lease and world.faults and driver.at != "starts":
                yield (
                    f"driver {driver.name} sleeps until its lease has run out",
                    _put(world, driver._replace(lease=False))._replace(
                        lock=0 if world.lock == driver.name else world.lock,
                        faults=world.faults - 1,
                    ),
                )
            yield from getattr(self, "_" + driver.at)(world, driver, f"driver {driver.name}")

    def _arrivals(self, world: World) -> Iterator[tuple[str, World]]:
        for sent in world.net:
            arrived = world._replace(net=world.net - {sent})
            if isinstance(sent, Record):
                label = f"{sent.kind} of epoch {sent.epoch}, batch {sent.batch}, is in the log"
                after = self._appended(arrived, sent)
            else:
                waits = not sent.leased or any(
                    driver.sent == sent and driver.lease and driver.at == "sends"
                    for driver in world.drivers
                )
                label = f"message {sent.tag} of epoch {sent.epoch} is in the queue"
                label += "" if waits else ", late"
                after = arrived._replace(queue=(*world.queue, sent._replace(late=not waits)))
            yield label, after

    def _appended(self, world: World, record: Record) -> World:
        """Append a record, and note aside what the rule of the log says of it."""
        log = (*world.log, record)
        if record.kind == "open" and record.epoch == world.epoch + 1:
            return world._replace(log=log, epoch=record.epoch)
        if (
            record.kind == "commit"
            and record.epoch == world.epoch
            and record.batch == len(world.commits) + 1
        ):
            items = next(items for mark, items in world.staged if mark == record.mark)
            return world._replace(
                log=log, commits=(*world.commits, record), outputs=(*world.outputs, items)
            )
        return world._replace(log=log)

    def _surroundings(self, world: World) -> Iterator[tuple[str, World]]:
        if world.takeovers and len(world.drivers) == 1:
            new = Driver(3 - world.drivers[0].name)
            yield (
                f"driver {new.name} starts, driver {world.drivers[0].name} still lives",
                world._replace(drivers=(*world.drivers, new), takeovers=world.takeovers - 1),
            )
        if world.faults and world.lock:
            yield (
                "the broker starts anew and knows of no lock",
                world._replace(lock=0, faults=world.faults - 1),
            )
        if world.compactions and (log := self._compacted(world.log)) != world.log:
            yield (
                "the commit topic is compacted",
                world._replace(log=log, compactions=world.compactions - 1),
            )

    def _compacted(self, log: tuple[Record, ...]) -> tuple[Record, ...]:
        newest = {self._key(record): number for number, record in enumerate(log)}
        kept = set(newest.values())
        return tuple(record for number, record in enumerate(log) if number in kept)

    def _key(self, record: Record) -> tuple[object, ...]:
        if self.mutation == "compaction lets a void record replace a valid one":
            return record.kind, record.batch
        doubts = 0 if self.mutation.startswith("a repeated record") else record.doubts
        if record.kind == "open":
            return record.epoch, "open", doubts, record.driver
        return record.epoch, record.kind, doubts, record.batch

    def _starts(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        living = {other.name for other in world.drivers}
        holder = world.lock
        if holder in (0, driver.name) or holder not in living:
            locked = driver._replace(at="waits", lease=True)
            why = "" if holder in (0, driver.name) else f", as driver {holder} is dead"
            yield f"{told} gets the lock{why}", _put(world, locked)._replace(lock=driver.name)

    def _waits(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        judged = self._judge(world.log)
        others = {other.name for other in world.drivers if other.name != driver.name}
        # An open in between must make this one void: it was not this driver's predecessor.
        ready = driver._replace(at="opens", epoch=judged.epoch + 1)
        if not others or judged.closed or self.mutation == "successor does not wait for the lease":
            yield f"{told} need not wait", _put(world, ready)
            return
        if not driver.lease:
            yield f"{told} lost the lock and ends", _gone(world, driver)
            return
        # Meanwhile nobody else could renew, so nobody else holds that it has the lease.
        drivers = tuple(
            ready if other.name == driver.name else other._replace(lease=False)
            for other in world.drivers
        )
        yield f"{told} holds the lock for a full expiry", world._replace(drivers=drivers)

    def _opens(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        epoch = driver.epoch
        if self.mutation == "epoch read again after the decision not to wait":
            epoch = self._judge(world.log).epoch + 1
        record = Record("open", epoch, driver.name, doubts=driver.doubts)
        opening = driver._replace(at="reads", epoch=record.epoch, sent=record)
        yield f"{told} sends open of epoch {record.epoch}", _sent(world, opening, record)

    def _reads(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        """Read the log up to the own record, an open or a commit."""
        record = driver.sent
        assert isinstance(record, Record)
        if all(record.content != other.content for other in world.log):
            yield from self._doubted(world, driver, record, told)
            return
        judged = self._judge(world.log)
        if record.kind == "open":
            mine = (judged.epoch, judged.driver) == (record.epoch, driver.name)
            if mine:
                yield from self._opened(world, driver, judged.last, told)
        else:
            mine = any(record.content == other.content for other in judged.commits)
            if mine:
                yield (
                    f"{told} reads that batch {driver.batch} is committed",
                    _put(world, self._committed(world, driver)),
                )
        if not mine:
            yield (
                f"{told} reads that epoch {judged.epoch} has the job, and ends",
                _gone(world, driver),
            )

    def _doubted(
        self, world: World, driver: Driver, record: Record, told: str
    ) -> Iterator[tuple[str, World]]:
        if not world.delays:
            return
        again = record._replace(doubts=record.doubts + 1)
        doubting = driver._replace(doubts=again.doubts, sent=again)
        yield (
            f"{told} hears nothing, does not find it in the log and sends {record.kind} again",
            _sent(world, doubting, again)._replace(delays=world.delays - 1),
        )

    def _opened(
        self, world: World, driver: Driver, last: Record, told: str
    ) -> Iterator[tuple[str, World]]:
        opened = driver._replace(batch=last.batch, begin=last.end, sent=None, at="plans")
        if last.batch and not self.mutation.startswith("last batch of the driver before"):
            output = self._output(world, last.mark)
            at = "looks" if "at the start" not in self.mutation else "publishes"
            opened = opened._replace(output=output, known=0, at=at)
        yield f"{told} reads that epoch {driver.epoch} is its own", _put(world, opened)

    def _output(self, world: World, mark: Mark) -> Items:
        """Read what a commit names from the journal."""
        if self.mutation == "every staged attempt is published":
            parts = sorted(part for part in world.staged if part[0][:2] == mark[:2])
            return tuple(item for _, items in parts for item in items)
        return next(items for staged, items in world.staged if staged == mark)

    def _plans(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        for end in range(driver.begin + 1, min(self.records, driver.begin + 2) + 1):
            planned = driver._replace(at="processes", batch=driver.batch + 1, end=end)
            yield (
                f"{told} plans batch {planned.batch}: records {driver.begin} to {end - 1}",
                _put(world, planned),
            )
        if world.faults:
            yield f"{told} closes its epoch and ends", _gone(self._closed(world, driver), driver)

    def _closed(self, world: World, driver: Driver) -> World:
        record = Record("close", driver.epoch, driver.name)
        free = 0 if world.lock == driver.name else world.lock
        return world._replace(log=(*world.log, record), lock=free, faults=world.faults - 1)

    def _processes(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        mark = (driver.epoch, driver.batch, driver.attempt + 1)
        items = tuple((record, mark) for record in range(driver.begin, driver.end))
        state = self._restored(world, driver.batch - 1) + items
        staged = world._replace(staged=world.staged | {(mark, items)})
        what = f"attempt {mark[2]} of batch {driver.batch} is in the journal of {told}"
        record = Record("commit", driver.epoch, driver.name, mark, driver.begin, driver.end, state)
        record = record._replace(doubts=driver.doubts)
        waiting = driver._replace(at="reads", attempt=0, sent=record)
        if self.mutation == "published before the commit record was read back":
            waiting = self._committed(staged, waiting)
        yield f"{what}, and its commit is sent", _sent(staged, waiting, record)
        if world.failures:
            yield (
                f"{what}, and dies before it reports",
                _put(staged, driver._replace(attempt=mark[2]))._replace(
                    failures=world.failures - 1
                ),
            )

    def _restored(self, world: World, batch: int) -> Items:
        """Read the topic of the state: each tag once, nothing of a later batch."""
        queue = tuple(message for message in world.queue if message.batch <= batch)
        return self._seen(world._replace(queue=queue))

    def _committed(self, world: World, driver: Driver) -> Driver:
        record = driver.sent
        assert isinstance(record, Record)
        if self.mutation == "next batch planned before the last one is published":
            # Somebody would publish it in the background, one message at least is under way.
            return driver._replace(at="plans", begin=record.end, sent=None)
        output = self._output(world, record.mark)
        return driver._replace(at="publishes", begin=record.end, output=output, known=0, sent=None)

    def _publishes(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        missing = self._missing(driver)
        if not missing:
            yield (
                f"{told} has published batch {driver.batch}",
                _put(world, driver._replace(at="plans", output=(), known=0)),
            )
            return
        if not driver.lease and self.mutation != "lease not asked before a send":
            yield f"{told} finds that its lease has run out, and ends", _gone(world, driver)
            return
        sequence = missing[0]
        message = Message(
            driver.batch, sequence, driver.output[sequence], driver.epoch, driver.lease
        )
        sending = driver._replace(at="sends", sent=message)
        yield f"{told} sends message {message.tag}", _sent(world, sending, message)
        if self.mutation.startswith("closed before") and world.faults:
            yield f"{told} closes its epoch", self._closed(world, driver)

    def _missing(self, driver: Driver) -> list[int]:
        """Give what is not known to be there, in the order in which it is sent."""
        order = list(range(len(driver.output)))
        if self.mutation == "order of publishing not kept":
            order.reverse()
        return [sequence for sequence in order if not driver.known >> sequence & 1]

    def _sends(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        message = driver.sent
        assert isinstance(message, Message)
        if message not in world.net:
            known = driver.known | 1 << message.sequence
            yield (
                f"{told} hears that message {message.tag} is there",
                _put(world, driver._replace(at="publishes", known=known, sent=None)),
            )
        if world.delays:
            careless = "after a doubtful send" in self.mutation
            doubtful = driver._replace(at="publishes" if careless else "looks", sent=None)
            yield (
                f"{told} hears nothing of message {message.tag}",
                _put(world, doubtful)._replace(delays=world.delays - 1),
            )

    def _looks(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        """Read the target queue behind its known end: which messages of the batch are there."""
        known = 0
        for message in world.queue:
            if message.batch == driver.batch:
                known |= 1 << message.sequence
        there = known.bit_count()
        yield (
            f"{told} reads the queue: {there} of {len(driver.output)} messages are there",
            _put(world, driver._replace(at="publishes", known=known)),
        )


def _sent(world: World, driver: Driver, what: Record | Message) -> World:
    return _put(world, driver)._replace(net=world.net | {what})


def _put(world: World, driver: Driver) -> World:
    drivers = tuple(driver if other.name == driver.name else other for other in world.drivers)
    return world._replace(drivers=drivers)


def _gone(world: World, driver: Driver) -> World:
    """End a driver; where it was the only one, another is started in its place."""
    rest = tuple(other for other in world.drivers if other.name != driver.name)
    return world._replace(drivers=rest or (Driver(3 - driver.name),))


def _expected(world: World) -> Items:
    return tuple(item for items in world.outputs for item in items)


def _told(items: Items) -> str:
    return "[" + ", ".join(f"{item} by {mark}" for item, mark in items) + "]"
