"""The commit protocol on the embedded broker: each step of it one request.

Records are the numbers 0, 1, ...; the task that processes one marks it with its epoch and attempt,
as user code may use clocks and chance.  State is the list of what was processed, so that it shows
at once where it is not what the output says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Mark = tuple[int, int, int]
"""Epoch, batch and attempt: the name of one attempt at a batch."""
Item = tuple[int, Mark]
"""A record, and who processed it."""
Items = tuple[Item, ...]

NOBODY: Mark = (0, 0, 0)

Mutation = Literal[
    "",
    "no fence",
    "no predecessor check",
    "no fence and no predecessor check",
    "pending state applied too early",
    "copy of a lost attempt taken for the committed one",
    "every staged attempt counts",
    "unit without marks",
    "commit answered before it is on disk",
    "a repeated commit counts again",
]


class Staged(NamedTuple):
    """What an attempt handed to the broker."""

    mark: Mark
    items: Items


class Copy(NamedTuple):
    """A worker's copy of the state: as of a commit, and what the last attempt left beside it."""

    mark: Mark = NOBODY
    items: Items = ()
    left: tuple[Mark, Items] | None = None


class Request(NamedTuple):
    """A commit on its way."""

    mark: Mark
    previous: int
    end: int
    #: State as the task saw it, with its own changes.
    state: Items


class Driver(NamedTuple):
    """A driver: where it is, and what it goes by."""

    name: int
    at: str = "starts"
    epoch: int = 0
    batch: int = 0
    begin: int = 0
    end: int = 0
    #: The attempt that the last commit names.
    base: Mark = NOBODY
    attempt: int = 0
    request: Request | None = None


class Committed(NamedTuple):
    """The newest commit record."""

    mark: Mark = NOBODY
    end: int = 0
    state: Items = ()


class World(NamedTuple):
    """All there is."""

    drivers: tuple[Driver, ...]
    faults: int
    takeovers: int
    failures: int
    epoch: int = 0
    last: Committed = Committed()
    output: Items = ()
    staged: frozenset[Staged] = frozenset()
    net: frozenset[Request] = frozenset()
    copies: tuple[Copy, ...] = (Copy(),)


@dataclass(frozen=True)
class EmbeddedModel:
    """A few records in batches of one or two, drivers that die or sleep, requests that linger."""

    mutation: Mutation = ""
    records: int = 3
    #: Deaths of a driver or of the broker, drivers that start beside another, failed attempts.
    faults: int = 1
    takeovers: int = 1
    failures: int = 1
    workers: int = 1
    _fence: bool = field(init=False)
    _predecessor: bool = field(init=False)

    def __post_init__(self) -> None:
        both = self.mutation == "no fence and no predecessor check"
        object.__setattr__(self, "_fence", not both and self.mutation != "no fence")
        object.__setattr__(
            self, "_predecessor", not both and self.mutation != "no predecessor check"
        )

    def first(self) -> World:
        return World(
            (Driver(1),),
            self.faults,
            self.takeovers,
            self.failures,
            copies=(Copy(),) * self.workers,
        )

    def finished(self, world: World) -> bool:
        return world.last.end == self.records

    def wrong(self, before: World, after: World) -> str | None:
        records = [record for record, _ in after.output]
        if records != list(range(len(records))):
            return f"readers see the records {records}: one is lost, doubled or out of order"
        if after.output != after.last.state:
            return (
                f"readers see {told_items(after.output)}, the committed state holds"
                f" {told_items(after.last.state)}"
            )
        if len(records) != after.last.end:
            return f"readers see {len(records)} records, offset {after.last.end} is committed"
        old, new = before.last, after.last
        if new.end < old.end or new.mark[1] < old.mark[1]:
            return f"the last commit went back from batch {old.mark[1]} to {new.mark[1]}"
        # Without the predecessor check worse follows, and is more telling.
        if self._predecessor and new != old and new.mark[0] < after.epoch:
            return f"a commit of epoch {new.mark[0]} counts, though epoch {after.epoch} is open"
        return None

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        yield from self._broker(world)
        if world.takeovers and len(world.drivers) == 1:
            new = Driver(3 - world.drivers[0].name)
            yield (
                f"driver {new.name} starts, driver {world.drivers[0].name} still lives",
                world._replace(drivers=(*world.drivers, new), takeovers=world.takeovers - 1),
            )
        for driver in world.drivers:
            if world.faults:
                yield (
                    f"driver {driver.name} dies",
                    _gone(world, driver)._replace(faults=world.faults - 1),
                )
            yield from self._driver(world, driver)

    def _broker(self, world: World) -> Iterator[tuple[str, World]]:
        for request in world.net:
            mark = request.mark
            arrived = world._replace(net=world.net - {request})
            what = f"the broker gets the commit of batch {mark[1]} of epoch {mark[0]}"
            verdict = self._verdict(world, request)
            if verdict:
                yield f"{what}: refused, {verdict}", arrived
            else:
                yield from self._commit(arrived, request, what)
                # The answer is lost or late, and the request comes once more.
                for label, after in self._commit(world, request, what):
                    yield f"{label}; it is under way once more", after
        if self.mutation == "unit without marks" and world.faults:
            yield from self._torn(world)
        if self.mutation == "commit answered before it is on disk" and world.faults:
            yield from self._forgotten(world)

    def _verdict(self, world: World, request: Request) -> str:
        epoch = request.mark[0]
        if self._fence and epoch < world.epoch:
            return f"epoch {world.epoch} is open"
        if request.mark == world.last.mark and self.mutation != "a repeated commit counts again":
            return "it is committed already"
        if (
            self._predecessor
            and request.previous != world.last.mark[1]
            and self.mutation != "a repeated commit counts again"
        ):
            return f"the last batch is {world.last.mark[1]}"
        if all(part.mark != request.mark for part in world.staged):
            return "what it names is not staged"
        return ""

    def _commit(self, world: World, request: Request, what: str) -> Iterator[tuple[str, World]]:
        named = [part for part in world.staged if part.mark == request.mark]
        if self.mutation == "every staged attempt counts":
            named = sorted(part for part in world.staged if part.mark[:2] == request.mark[:2])
        output = world.output + tuple(item for part in named for item in part.items)
        last = Committed(request.mark, request.end, request.state)
        yield f"{what}: valid", world._replace(output=output, last=last)

    def _torn(self, world: World) -> Iterator[tuple[str, World]]:
        for request in world.net:
            if self._verdict(world, request):
                continue
            items = [item for part in world.staged if part.mark == request.mark for item in part[1]]
            yield (
                f"the broker dies with the output of batch {request.mark[1]}, but not its record",
                world._replace(output=world.output + tuple(items), faults=world.faults - 1),
            )

    def _forgotten(self, world: World) -> Iterator[tuple[str, World]]:
        if world.last != Committed():
            yield (
                "the broker loses power and comes back without its last record",
                world._replace(
                    last=Committed(), output=(), faults=world.faults - 1, net=frozenset()
                ),
            )

    def _driver(self, world: World, driver: Driver) -> Iterator[tuple[str, World]]:
        told = f"driver {driver.name}"
        if driver.at == "starts":
            yield from self._open(world, driver, told)
        elif self._fence and driver.epoch < world.epoch and driver.at in ("plans", "waits"):
            yield f"{told} hears of epoch {world.epoch} and ends", _gone(world, driver)
        elif driver.at == "plans":
            yield from self._plan(world, driver, told)
        elif driver.at == "processes":
            for worker in range(len(world.copies)):
                yield from self._process(world, driver, worker, told)
        elif driver.at == "waits":
            yield from self._wait(world, driver, told)

    def _open(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        epoch, last = world.epoch + 1, world.last
        opened = driver._replace(
            at="plans",
            epoch=epoch,
            batch=last.mark[1],
            begin=last.end,
            base=last.mark,
        )
        kept = frozenset(part for part in world.staged if part.mark[0] >= epoch)
        after = _put(world._replace(epoch=epoch, staged=kept), opened)
        yield f"{told} opens epoch {epoch} on top of batch {last.mark[1]}", after

    def _plan(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        if self._predecessor and driver.batch != world.last.mark[1]:
            yield f"{told} sees that its batch was not committed and ends", _gone(world, driver)
            return
        for end in range(driver.begin + 1, min(self.records, driver.begin + 2) + 1):
            planned = driver._replace(at="processes", batch=driver.batch + 1, end=end)
            yield (
                f"{told} plans batch {planned.batch}: records {driver.begin} to {end - 1}",
                _put(world, planned),
            )

    def _process(
        self, world: World, driver: Driver, worker: int, told: str
    ) -> Iterator[tuple[str, World]]:
        mark = (driver.epoch, driver.batch, driver.attempt + 1)
        copy = self._opened(world, driver, world.copies[worker])
        items = tuple((record, mark) for record in range(driver.begin, driver.end))
        state = copy.items + items
        copy = copy._replace(left=(mark, state))
        if self.mutation == "pending state applied too early":
            copy = Copy(copy.mark, state)
        copies = (*world.copies[:worker], copy, *world.copies[worker + 1 :])
        what = f"attempt {mark[2]} of batch {driver.batch} stages for {told}"
        if self._fence and driver.epoch < world.epoch:
            yield f"{what}: refused, epoch {world.epoch} is open", _gone(world, driver)
            return
        if self._predecessor and driver.batch <= world.last.mark[1]:
            yield f"{what}: refused, the batch is committed", _gone(world, driver)
            return
        staged = world._replace(copies=copies, staged=world.staged | {Staged(mark, items)})
        request = Request(mark, driver.batch - 1, driver.end, state)
        yield (
            f"{what}, and the commit is sent",
            _put(
                staged._replace(net=staged.net | {request}),
                driver._replace(at="waits", attempt=0, request=request),
            ),
        )
        if world.failures:
            yield (
                f"{what} and dies before it reports",
                _put(staged, driver._replace(attempt=mark[2]))._replace(
                    failures=world.failures - 1
                ),
            )

    def _opened(self, world: World, driver: Driver, copy: Copy) -> Copy:
        """Bring a copy to the commit that the batch builds on, as its next opener does."""
        if copy.left is not None:
            mark, state = copy.left
            careless = self.mutation == "copy of a lost attempt taken for the committed one"
            if mark == driver.base or (careless and mark[1] == driver.base[1]):
                return Copy(driver.base, state)
        if copy.mark == driver.base:
            return Copy(copy.mark, copy.items)
        # Read the topic of the state from its start: it holds what is committed.
        return Copy(driver.base, world.last.state[: driver.begin])

    def _wait(self, world: World, driver: Driver, told: str) -> Iterator[tuple[str, World]]:
        request = driver.request
        assert request is not None
        last = world.last
        own = last.mark == request.mark or (
            not self._predecessor and last.mark[0] == driver.epoch and last.mark[1] >= driver.batch
        )
        if own:
            went_on = driver._replace(
                at="plans", begin=driver.end, base=request.mark, end=0, request=None
            )
            yield f"{told} hears that batch {driver.batch} is committed", _put(world, went_on)
        elif request not in world.net:
            verdict = self._verdict(world, request)
            if verdict:
                yield f"{told} hears that {verdict}, and ends", _gone(world, driver)
            else:
                yield (
                    f"{told} hears nothing and sends the commit again",
                    world._replace(net=world.net | {request}),
                )


def _put(world: World, driver: Driver) -> World:
    drivers = tuple(driver if other.name == driver.name else other for other in world.drivers)
    return world._replace(drivers=drivers)


def _gone(world: World, driver: Driver) -> World:
    """End a driver; where it was the only one, another is started in its place."""
    rest = tuple(other for other in world.drivers if other.name != driver.name)
    return world._replace(drivers=rest or (Driver(3 - driver.name),))


def told_items(items: Items) -> str:
    return "[" + ", ".join(f"{item} by {mark}" for item, mark in items) + "]"
