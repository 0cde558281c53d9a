"""All there is in the model of RocketMQ: drivers, the commit topic, a queue, what is under way."""

from __future__ import annotations

from typing import Literal, NamedTuple

from tests.proof.model.commit_log import Record
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
    "what the newest open stands on is deleted",
    "what is left of the log is judged from its first record on",
    "epoch read again after the decision not to wait",
]


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
    #: One past the newest record of the commit topic that it knows to count.
    stands_on: int = 0
    sent: Record | Message | None = None


class World(NamedTuple):
    """All there is."""

    drivers: tuple[Driver, ...]
    faults: int
    takeovers: int
    failures: int
    delays: int
    compactions: int
    #: Drivers that were started.
    started: int = 1
    #: Who holds the lock on the commit topic, 0: nobody; in the broker's memory.
    lock: int = 0
    log: tuple[Record, ...] = ()
    #: End of the log.
    next: int = 0
    #: What the log says by its order when nothing of it is compacted, kept aside to compare.
    epoch: int = 0
    owner: int = 0
    commits: tuple[Record, ...] = ()
    outputs: tuple[Items, ...] = ()
    staged: frozenset[tuple[Mark, Items]] = frozenset()
    queue: tuple[Message, ...] = ()
    net: frozenset[Record | Message] = frozenset()


def send(world: World, driver: Driver, what: Record | Message) -> World:
    return put(world, driver)._replace(net=world.net | {what})


def put(world: World, driver: Driver) -> World:
    drivers = tuple(driver if other.name == driver.name else other for other in world.drivers)
    return world._replace(drivers=drivers)


def gone(world: World, driver: Driver) -> World:
    """End a driver; where it was the only one, another is started in its place."""
    rest = tuple(other for other in world.drivers if other.name != driver.name)
    world = world._replace(drivers=rest)
    return world if rest else started(world)


def started(world: World) -> World:
    """Start a driver; each has a name of its own."""
    name = world.started + 1
    return world._replace(drivers=(*world.drivers, Driver(name)), started=name)


def committed_items(world: World) -> Items:
    return tuple(item for items in world.outputs for item in items)
