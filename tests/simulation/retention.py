"""Source topics that lose messages while a job runs, or is away: by their age, or made anew.

What a job did not read it must name: it stops with the queue, or says in its log where it goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from unittest.mock import patch

import headrace.runtime.planning
import headrace.store.maintenance
from headrace.errors import (
    BrokerStorageError,
    HeadraceError,
    OffsetExpiredError,
    TopicNotFoundError,
)
from tests.simulation.job import LINES, QUEUES, Line
from tests.simulation.threads import sleep
from tests.simulation.world import ViolationError, World

if TYPE_CHECKING:
    from headrace.client import Admin
    from tests.simulation.cluster import Drivers
    from tests.simulation.rocketmq import RocketMQCluster

__all__ = ["UNDER_WAY", "Losses", "Sources"]

_BELOW = re.compile(
    r"must go on at offset (\d+) of queue (\S+), but the broker's first offset is (\d+):"
    r" (\d+) messages are gone"
)
_BEYOND = re.compile(r"must go on at offset (\d+) of queue (\S+), which ends at (\d+):")
_GOES_ON = re.compile(r"; it goes on at (\d+)$")
#: How long it may take until nobody takes a topic for gone that was made anew, s.
_KNOWN_AFTER = 8.0
#: Longer than a request is held up on its way, s.
UNDER_WAY = 3.2


@dataclass
class Generation:
    """The messages of one queue, from when its topic was made until it was deleted."""

    lines: list[Line] = field(default_factory=list)
    #: The first offset that is left.
    first: int = 0
    #: Up to where the job has committed it.
    committed: int = 0
    #: Offsets of which the job has said that it passes over them.
    skipped: set[int] = field(default_factory=set)

    def read(self) -> list[Line]:
        """Give the lines that must be in the job's results, once."""
        ends = range(self.committed)
        return [self.lines[at] for at in ends if at not in self.skipped]


class Source:
    """One queue by its name, whichever topic stands behind it."""

    def __init__(self) -> None:
        self._generations: dict[Hashable, Generation] = {}
        self._before: Generation | None = None
        self.now = Generation()
        #: Where the last commit says that the job goes on; 0: nowhere.
        self.committed = 0
        #: Where it goes on, by what it has said since.
        self.offset = 0
        #: All such places since the last commit.
        self.said: set[int] = set()

    def stands_for(self, key: Hashable) -> Generation:
        """Note which topic is behind the name now."""
        now = self._generations.setdefault(key, Generation())
        if now is not self.now:
            self._before = self.now if self.now.lines else self._before
            self.now = now
        return now

    def commit(self, offset: int) -> None:
        """Take what a commit record says."""
        if offset != self.offset:
            # A batch that was read before its topic went still counts, and its offsets do not.
            gone = self._before if offset > len(self.now.lines) else None
            (gone or self.now).committed = offset
        self.committed = self.offset = offset
        self.said.clear()

    def begin_anew(self) -> None:
        """Forget what was read of it."""
        for each in self._generations.values():
            each.committed, each.skipped = 0, set()
        self.committed = self.offset = 0
        self.said.clear()

    def check(self, name: str) -> None:
        """Make sure that nothing is committed that was never there."""
        for each in self._generations.values():
            if each.committed > len(each.lines):
                what = f"{name} is committed to {each.committed} of {len(each.lines)}"
                raise ViolationError(what)

    def lines(self) -> list[Line]:
        """Give the lines that are there, or were."""
        return [line for each in self._generations.values() for line in each.lines]

    def read(self) -> list[Line]:
        """Give the lines that must be in the job's results, once, of all topics of the name."""
        return [line for each in self._generations.values() for line in each.read()]


class Sources:
    """The source queues: what is there, what of it is committed, and what the job passes over.

    Parameters
    ----------
    topics
        Names of their queues, by topic.
    """

    def __init__(self, topics: Mapping[str, list[str]]) -> None:
        self._topics = topics
        self.queues = {name: Source() for names in topics.values() for name in names}
        #: Whether a commit has named all of them.
        self.has_begun = False

    def places(self) -> Iterator[tuple[tuple[str, str, int], Source]]:
        """Give topic, broker and number of each queue, and what is known of it."""
        for name, source in self.queues.items():
            topic, broker, number = name.split("@")
            yield (topic, broker, int(number)), source

    def commit(self, offsets: Mapping[str, int]) -> None:
        """Take what a commit record says."""
        for name, source in self.queues.items():
            offset = offsets.get(name, source.offset)
            # Whoever moves state says again what is committed, where a driver has said that it goes on.
            if offset < source.offset and offset != source.committed:
                raise ViolationError(f"the offset of {name} goes back")
            source.commit(offset)
        self.has_begun = self.has_begun or offsets.keys() >= self.queues.keys()

    def committed(self) -> dict[str, list[list[Line]]]:
        """Give the lines that must be in the job's results, by topic and queue."""
        for name, source in self.queues.items():
            source.check(name)
        return {
            topic: [self.queues[name].read() for name in names]
            for topic, names in self._topics.items()
        }

    def are_read(self) -> bool:
        """Tell whether everything that is there now is committed, and something was there."""
        return self.stored() > 0 and all(
            each.committed == len(each.now.lines) for each in self.queues.values()
        )

    def are_known(self) -> bool:
        """Tell whether the job has seen which topics were made anew."""
        return all(each.committed <= len(each.now.lines) for each in self.queues.values())

    def stored(self) -> int:
        """Count the lines that are there, or were."""
        return sum(len(source.lines()) for source in self.queues.values())

    def has(self, line: str) -> bool:
        """Tell whether a line is there, or was."""
        return any(line == one.text for source in self.queues.values() for one in source.lines())

    def hear(self, said: str, *, goes_on: bool) -> None:
        """Check what a job says of an offset that is not held, and take where it goes on."""
        below, beyond = _BELOW.search(said), _BEYOND.search(said)
        found = below or beyond
        if found is None:
            raise ViolationError(f"nobody can tell from this which queue it is: {said}")
        offset, source = int(found[1]), self.queues[found[2]]
        if offset not in {source.committed, *source.said}:
            raise ViolationError(f"it is committed to {source.committed}, and not so: {said}")
        to = _GOES_ON.search(said)
        if goes_on != (to is not None):
            raise ViolationError(f"it must {'go on' if goes_on else 'stop'}: {said}")
        place = None if to is None else int(to[1])
        if below is not None:
            first, count = int(below[3]), int(below[4])
            if first > source.now.first or count != first - offset or place not in (None, first):
                raise ViolationError(f"the queue begins at {source.now.first}, and not so: {said}")
        if place is not None:
            source.now.skipped |= set(range(offset if below else 0, place))
            source.offset = place
            source.said.add(place)


class Losses:
    """What is lost of a world's source topics, and what their job says of it.

    Parameters
    ----------
    world
        Where it happens.
    sources
        What is known of the queues.
    drivers
        Those of the job.
    """

    def __init__(self, world: World, sources: Sources, drivers: Drivers) -> None:
        self.failure: ViolationError | None = None
        #: Looks which queues there are now, and where they begin.
        self.look: Callable[[], None] = lambda: None
        #: How often the job has stopped, or passed over something.
        self.stopped = self.passed = 0
        self._world = world
        self._sources = sources
        self._drivers = drivers
        self._goes_on = world.chance.random() < 0.5
        self._may_stop = not self._goes_on
        #: After so many stops somebody lets it go on.
        self._stops = world.chance.choice((1, 1, 2, 3))
        self._age: float | None = None
        #: Up to when there may be no topic.
        self._gone_until = -1.0
        self._set()

    def _set(self) -> None:
        settings = self._drivers.settings
        self._drivers.settings = replace(
            settings, on_expired_offset="earliest" if self._goes_on else "fail"
        )

    def begin(self, age: float, cluster: RocketMQCluster | None) -> None:
        """Let messages expire as soon as the job has begun, and drivers be away for longer.

        Parameters
        ----------
        age
            How old messages become, s.
        cluster
            What deletes them, where that is no store of ours.
        """
        world, chance = self._world, self._world.chance
        if not self._sources.has_begun:
            world.after(0.1, lambda: self.begin(age, cluster))
            return
        self._age = age
        for _ in range(chance.randint(1, 3)):
            world.after(chance.uniform(0.0, 6.0), lambda: self._leave(chance.uniform(1.0, 3 * age)))
        if cluster is not None:
            self._expire(cluster, age)

    def _expire(self, cluster: RocketMQCluster, age: float) -> None:
        cluster.expire(LINES, age)
        self._world.after(0.5, lambda: self._expire(cluster, age))

    def _leave(self, seconds: float) -> None:
        drivers = self._drivers
        self._world.tell(f"all drivers are away for {seconds:.1f} s")
        drivers.away_until = self._world.now + seconds
        for driver in drivers.alive:
            driver.kill()

    def warning(self, text: str, *given: object) -> None:
        """Take what the job says in its log: stands in for its logger."""
        said = text % given
        self._world.tell(said)
        self.passed += 1
        self._hear(said, goes_on=True)
        if not self._goes_on:
            self.failure = self.failure or ViolationError(f"it must stop: {said}")

    def _forgives(self, error: HeadraceError) -> bool:
        """Tell whether a driver may end by this error; that it ends then is what was asked for."""
        if isinstance(error, TopicNotFoundError):
            return self._world.now < self._gone_until
        if isinstance(error, BrokerStorageError):
            return True
        if not isinstance(error, OffsetExpiredError) or not self._may_stop:
            return False
        self._hear(error.message, goes_on=False)
        self.stopped += 1
        if self.stopped == self._stops:
            # Somebody has read what it says, and lets it go on; another driver may run by then.
            self._goes_on = True
            self._set()
        return True

    def _hear(self, said: str, *, goes_on: bool) -> None:
        self.look()
        try:
            self._sources.hear(said, goes_on=goes_on)
        except ViolationError as error:
            self.failure = self.failure or error

    def make_anew(self, persist: Callable[[Callable[[], object]], None], admin: Admin) -> None:
        """Delete the topic, make it again, and send nothing until the job has seen it.

        What is sent before gets offsets that count as read, and nobody could tell.
        """
        world, sources = self._world, self._sources
        while not any(source.committed for source in sources.queues.values()):
            # Until then a batch may be under way of which the job knows nothing when it looks.
            sleep(world, 0.1)
        sleep(world, UNDER_WAY)
        self._gone_until = 1e9
        world.tell(f"{LINES} is deleted")
        persist(lambda: admin.delete_topic(LINES))
        sleep(world, world.chance.choice((0.0, 0.0, 0.3, 2.0)))
        for _ in range(2):
            # A request that was held up may delete it once more.
            persist(lambda: admin.create_topic(LINES, queues=QUEUES))
            sleep(world, UNDER_WAY)
        world.tell(f"{LINES} was made anew")
        self._gone_until = world.now + _KNOWN_AFTER
        self.look()
        while not sources.are_known():
            sleep(world, 0.1)
            self.look()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Hear what the job says; and let stores expire what is too old from now on."""
        by_age = headrace.store.maintenance.end_of_expired

        def end_of_expired(*given: object, age: object, **more: object) -> int:
            return 0 if self._age is None else by_age(*given, age=age, **more)  # type: ignore[arg-type]

        with ExitStack() as stack:
            stack.enter_context(patch.object(self._drivers, "forgives", self._forgives))
            stack.enter_context(patch.object(headrace.runtime.planning, "logger", self))
            stack.enter_context(
                patch.object(headrace.store.maintenance, "end_of_expired", end_of_expired)
            )
            yield
