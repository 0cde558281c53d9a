"""The commit protocol on a stock RocketMQ: journal, order of the log, publish, lease.

The commit topic is a log to which anybody can append at any time; what counts is decided by
reading it in order.  Output goes to its queue message by message, after the commit.  Time shows
only in what it does: a lease that runs out, a send that arrives after its sender gave it up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tests.proof.model.commit_log import Judged, Record, judge
from tests.proof.model.embedded import Item, Items, Mark, told_items
from tests.proof.model.rocketmq_world import (
    Driver,
    Message,
    Mutation,
    World,
    committed_items,
    gone,
    put,
    send,
    started,
)


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
            if last.state != (wanted := committed_items(after)):
                return f"the state of batch {last.batch} is {last.state}, not {wanted}"
        if after.log != before.log:
            judged = self._judge(after.log)
            if not judged.says_the_same(after.commits):
                held = after.commits[-1].batch if after.commits else 0
                return (
                    f"by the log the last commit is batch {judged.last.batch} of epoch"
                    f" {judged.last.epoch}, but batch {held} was committed"
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
        seen, wanted = self._seen(world), committed_items(world)
        if seen != wanted[: len(seen)]:
            return f"the committed reader got {told_items(seen)}, committed is {told_items(wanted)}"
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
        return judge(log, self.mutation)

    # What may happen.

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._arrivals(world)
        yield from self._surroundings(world)
        for driver in world.drivers:
            if world.faults:
                yield (
                    f"driver {driver.name} dies",
                    gone(world, driver)._replace(faults=world.faults - 1),
                )
            if driver.lease and world.faults and driver.at != "starts":
                yield (
                    f"driver {driver.name} sleeps until its lease has run out",
                    put(world, driver._replace(lease=False))._replace(
                        lock=0 if world.lock == driver.name else world.lock,
                        faults=world.faults - 1,
                    ),
                )
            yield from self._sweeps(world, driver)
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
        record = record._replace(offset=world.next)
        world = world._replace(next=world.next + 1)
        log = (*world.log, record)
        if record.kind == "open":
            if (record.epoch, record.batch) == (world.epoch + 1, len(world.commits)):
                return world._replace(log=log, epoch=record.epoch, owner=record.driver)
            return world._replace(log=log)
        if (
            record.kind == "commit"
            and (record.epoch, record.driver) == (world.epoch, world.owner)
            and record.batch == len(world.commits) + 1
        ):
            items = next(items for mark, items in world.staged if mark == record.mark)
            return world._replace(
                log=log, commits=(*world.commits, record), outputs=(*world.outputs, items)
            )
        return world._replace(log=log)

    def _surroundings(self, world: World) -> Iterator[tuple[str, World]]:
        if world.takeovers and len(world.drivers) == 1:
            yield (
                f"driver {world.started + 1} starts, driver {world.drivers[0].name} still lives",
                started(world)._replace(takeovers=world.takeovers - 1),
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
        newest = {self._key(record): record for record in log}
        kept = {record.offset for record in newest.values() if not record.deletes}
        return tuple(record for record in log if record.offset in kept)

    def _sweeps(self, world: World, driver: Driver) -> Iterator[tuple[str, World]]:
        """Delete what lies before the first record of the epoch before the newest."""
        if not world.compactions or driver.at not in ("opens", "plans"):
            return
        early = self.mutation == "what the newest open stands on is deleted"
        epoch = self._judge(world.log).epoch - (not early)
        newest = {self._key(record): record for record in world.log}
        before = itertools.takewhile(lambda record: record.epoch < epoch, world.log)
        keys = dict.fromkeys(self._key(record) for record in before)
        swept = world
        for key in keys:
            if not newest[key].deletes:
                record = newest[key]._replace(deletes=True, stands_on=0, offset=swept.next)
                swept = swept._replace(log=(*swept.log, record), next=swept.next + 1)
        if swept != world:
            yield f"driver {driver.name} deletes what lies before epoch {epoch}", swept

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
            yield f"{told} gets the lock{why}", put(world, locked)._replace(lock=driver.name)

    def _waits(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        judged = self._judge(world.log)
        others = {other.name for other in world.drivers if other.name != driver.name}
        ready = driver._replace(at="opens", epoch=judged.epoch + 1)
        if not others or judged.closed or self.mutation == "successor does not wait for the lease":
            yield f"{told} need not wait", put(world, ready)
            return
        if not driver.lease:
            yield f"{told} lost the lock and ends", gone(world, driver)
            return
        # Meanwhile nobody else could renew, so nobody else holds that it has the lease.
        drivers = tuple(
            ready if other.name == driver.name else other._replace(lease=False)
            for other in world.drivers
        )
        yield f"{told} holds the lock for a full expiry", world._replace(drivers=drivers)

    def _opens(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        judged = self._judge(world.log)
        # An open in between must make this one void: it was not this driver's predecessor.
        epoch = driver.epoch
        if self.mutation == "epoch read again after the decision not to wait":
            epoch = judged.epoch + 1
        last = judged.last
        record = last._replace(
            kind="open",
            epoch=epoch,
            driver=driver.name,
            doubts=driver.doubts,
            stands_on=judged.stands_on,
            offset=0,
        )
        opening = driver._replace(at="reads", epoch=record.epoch, sent=record)
        yield f"{told} sends open of epoch {record.epoch}", send(world, opening, record)

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
                reader = driver._replace(stands_on=judged.stands_on)
                yield from self._opened(world, reader, judged.last, told)
        else:
            mine = any(record.content == other.content for other in judged.commits)
            if mine:
                reader = driver._replace(stands_on=judged.stands_on)
                yield (
                    f"{told} reads that batch {driver.batch} is committed",
                    put(world, self._committed(world, reader)),
                )
        if not mine and record.kind == "open" and judged.epoch < record.epoch:
            again = driver._replace(at="opens", doubts=driver.doubts + 1)
            yield f"{told} reads that a commit came before its open", put(world, again)
        elif not mine:
            yield (
                f"{told} reads that epoch {judged.epoch} has the job, and ends",
                gone(world, driver),
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
            send(world, doubting, again)._replace(delays=world.delays - 1),
        )

    def _opened(
        self, world: World, driver: Driver, last: Record, told: str
    ) -> Iterator[tuple[str, World]]:
        opened = driver._replace(batch=last.batch, begin=last.end, sent=None, at="plans")
        if last.batch and not self.mutation.startswith("last batch of the driver before"):
            output = self._output(world, last.mark)
            at = "looks" if "at the start" not in self.mutation else "publishes"
            opened = opened._replace(output=output, known=0, at=at)
        yield f"{told} reads that epoch {driver.epoch} is its own", put(world, opened)

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
                put(world, planned),
            )
        if world.faults:
            yield f"{told} closes its epoch and ends", gone(self._closed(world, driver), driver)

    def _closed(self, world: World, driver: Driver) -> World:
        last = self._judge(world.log).last
        record = last._replace(
            kind="close",
            epoch=driver.epoch,
            driver=driver.name,
            doubts=driver.doubts,
            stands_on=driver.stands_on,
        )
        free = 0 if world.lock == driver.name else world.lock
        return self._appended(world, record)._replace(lock=free, faults=world.faults - 1)

    def _processes(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        mark = (driver.epoch, driver.batch, driver.attempt + 1)
        items = tuple((record, mark) for record in range(driver.begin, driver.end))
        state = self._restored(world, driver.batch - 1) + items
        staged = world._replace(staged=world.staged | {(mark, items)})
        what = f"attempt {mark[2]} of batch {driver.batch} is in the journal of {told}"
        record = Record("commit", driver.epoch, driver.name, mark, driver.begin, driver.end, state)
        record = record._replace(doubts=driver.doubts, stands_on=driver.stands_on)
        waiting = driver._replace(at="reads", attempt=0, sent=record)
        if self.mutation == "published before the commit record was read back":
            waiting = self._committed(staged, waiting)
        yield f"{what}, and its commit is sent", send(staged, waiting, record)
        if world.failures:
            yield (
                f"{what}, and dies before it reports",
                put(staged, driver._replace(attempt=mark[2]))._replace(failures=world.failures - 1),
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
                put(world, driver._replace(at="plans", output=(), known=0)),
            )
            return
        if not driver.lease and self.mutation != "lease not asked before a send":
            yield f"{told} finds that its lease has run out, and ends", gone(world, driver)
            return
        sequence = missing[0]
        message = Message(
            driver.batch, sequence, driver.output[sequence], driver.epoch, driver.lease
        )
        sending = driver._replace(at="sends", sent=message)
        yield f"{told} sends message {message.tag}", send(world, sending, message)
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
                put(world, driver._replace(at="publishes", known=known, sent=None)),
            )
        if world.delays:
            careless = "after a doubtful send" in self.mutation
            doubtful = driver._replace(at="publishes" if careless else "looks", sent=None)
            yield (
                f"{told} hears nothing of message {message.tag}",
                put(world, doubtful)._replace(delays=world.delays - 1),
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
            put(world, driver._replace(at="publishes", known=known)),
        )
