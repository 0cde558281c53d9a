"""A second broker that follows the first, and takes its place when its machine is lost.

What counts is what the follower shows: what a primary has that it has not is nobody's yet, and may
be gone with the primary's machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.broker.replication.replicas import Role
from headrace.client import Client, ClientSettings
from headrace.errors import HeadraceError, TopicNotFoundError
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from tests.simulation.cluster import HOST, PORT, Drivers, EmbeddedCluster
from tests.simulation.job import COUNTS
from tests.simulation.network import Cut
from tests.simulation.threads import sleep

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.broker.core import Core
    from headrace.store.replication.following import Epoch
    from tests.simulation.network import Network
    from tests.simulation.processes import Points
    from tests.simulation.world import Process, World

__all__ = ["ADDRESSES", "Replicas"]

_SECOND = "broker-b"
_NAMES = re.compile(r"topic '([^']+)'")
#: Where clients look for the broker, as its documentation says.
ADDRESSES = f"{HOST}:{PORT};{HOST}:{PORT + 1}"
#: From when on nothing new strikes, s.
_CALM = 12.0
#: What whoever promotes a follower waits for an answer, s.
_ADMIN = ClientSettings(request_timeout=timedelta(seconds=40))


class Replicas:
    """Two brokers with one log: the first, its follower, and what becomes of them.

    Parameters
    ----------
    world, network
        Where they are.
    first
        The primary, until its follower is promoted.
    folder
        For the files of the second.
    """

    def __init__(
        self, world: World, network: Network, first: EmbeddedCluster, folder: Path
    ) -> None:
        chance = world.chance
        self._world = world
        self._network = network
        network.is_patient = True
        self._first = first
        first.settings = replace(
            first.settings,
            min_replicas=1,
            replica_timeout=timedelta(seconds=chance.choice((0.3, 0.4, 1.5))),
            replica_expiry=timedelta(seconds=chance.choice((1, 4))),
            rebuild_expiry=timedelta(seconds=3),
            follow_interval=timedelta(seconds=chance.choice((0.2, 0.5))),
        )
        #: Whether a follower must have what the second answers, once it is the primary.
        self._waits = chance.random() < 0.5
        settings = replace(
            first.settings, follow=first.address, min_replicas=1 if self._waits else 0
        )
        self._second = EmbeddedCluster(world, network, folder, settings, _SECOND, PORT + 1)
        #: The epoch that the second has begun as the primary.
        self._promoted: Epoch | None = None
        self._fails_over = False
        #: Whether the first has another disk, which does not know that it was the primary.
        self._is_lost = False
        #: A follower with another disk is as good as the one before when it has come so far.
        self._whole_from = 0
        #: How far the log was that somebody has looked at.
        self._seen = 0
        #: Called when messages have become visible that count.
        self.on_arrival: Callable[[], None] = lambda: None
        first.on_arrival = lambda: self._arrived(first)
        self._second.on_arrival = lambda: self._arrived(self._second)
        #: Topics that the second knew when it became the primary: others are made again.
        self._known: set[str] = set()
        self._others_forgive: Callable[[HeadraceError], bool] = lambda _: False
        #: How often something was struck.
        self.count = 0

    @property
    def brokers(self) -> tuple[EmbeddedCluster, EmbeddedCluster]:
        """Both of them."""
        return self._first, self._second

    def plan(self, points: Points, drivers: Drivers) -> None:
        """Start the follower, and choose what happens to it and to the primary."""
        world, chance = self._world, self._world.chance
        self._others_forgive, drivers.forgives = drivers.forgives, self.forgives
        world.after(chance.choice((0.0, 0.0, 0.3, 1.5)), self._second.start)
        kinds = (
            self._kill,
            self._kill,
            self._cut_power,
            self._stop,
            self._cut_off,
            self._lose_disk,
        )
        for _ in range(chance.choice((0, 1, 1, 2, 4))):
            world.at(chance.uniform(0.3, 8.0), chance.choice(kinds))
        for _ in range(chance.choice((0, 0, 1, 2))):
            points.strikes[_SECOND, chance.randint(1, 60)] = self._strike_point
        if chance.random() < 0.3:
            self._second.files.trouble = chance.choice((5, 20, 60))
        if chance.random() < 0.8:
            world.at(chance.uniform(0.8, 7.0), self._fail_over)
        world.at(_CALM, self.calm)

    def calm(self) -> None:
        """Strike no more."""
        self._second.files.trouble = 0

    def forgives(self, error: HeadraceError) -> bool:
        """Let a driver end that lacks a topic: it was made just before a fail-over, or tables differ."""
        named = set(_NAMES.findall(error.message))
        tables = [set(core.topics) for each in self.brokers if (core := each.core) is not None]
        was_lost = self._promoted is not None and not named <= self._known
        differ = len({frozenset(named & table) for table in tables}) > 1
        lacks = isinstance(error, TopicNotFoundError) and (was_lost or differ)
        return lacks or self._others_forgive(error)

    # What counts

    def core(self) -> Core | None:
        """Give the broker whose messages count; None: nobody can tell now."""
        core = self._safe()
        if core is None or core.store.replication.end < self._seen:
            # One that begins anew shows again what it has shown.
            return None
        self._seen = core.store.replication.end
        return core

    def _safe(self) -> Core | None:
        if self._promoted is not None and not self._waits:
            return _with_role(self._second, Role.PRIMARY)
        return self._follower()

    def _follower(self) -> Core | None:
        if self._promoted is None:
            return _with_role(self._second, Role.FOLLOWER)
        core = _with_role(self._first, Role.FOLLOWER)
        # Before it has heard of that epoch it has what it alone had as the primary.
        knows = core is not None and self._promoted in core.store.replication.epochs.epochs
        return core if knows else None

    def _arrived(self, broker: EmbeddedCluster) -> None:
        if (core := self._safe()) is not None and core is broker.core:
            self.on_arrival()

    def difference(self) -> str | None:
        """Say where the two logs differ, as far as both have them."""
        primary = _with_role(self._first if self._promoted is None else self._second, Role.PRIMARY)
        follower = self._follower()
        if primary is None or follower is None:
            return None
        logs = primary.store.replication, follower.store.replication
        position, end = max(log.head().begin for log in logs), min(log.end for log in logs)
        while position < end:
            contents = [bytes(log.read(position, end - position).content) for log in logs]
            size = min(map(len, contents))
            if contents[0][:size] != contents[1][:size] or not size:
                return f"the logs of the two brokers differ behind {position}"
            position += size
        return None

    # What strikes

    def _kill(self) -> None:
        self.count += 1
        self._second.crash(self._world.chance.choice((0.2, 1.0, 4.0)))

    def _cut_power(self) -> None:
        self.count += 1
        self._second.crash(self._world.chance.uniform(0.05, 2.0), power=True)

    def _strike_point(self, _: Process) -> None:
        self.count += 1
        power = self._world.chance.random() < 0.5
        self._second.crash(self._world.chance.uniform(0.05, 1.0), power=power)

    def _stop(self) -> None:
        process = self._world.chance.choice(self.brokers).process
        if process is not None:
            self.count += 1
            process.sleep(self._world.chance.uniform(0.3, 6.0))

    def _cut_off(self) -> None:
        chance, world = self._world.chance, self._world
        self.count += 1
        sides = [self._first.machine, self._second.machine]
        chance.shuffle(sides)
        seconds, one_way = chance.uniform(0.5, 10.0), chance.random() < 0.4
        how = "one way" if one_way else "both ways"
        world.tell(f"{sides[0]} and {sides[1]} are cut off, {how}, for {seconds:.1f} s")
        one, other = (_is_at(machine) for machine in sides)
        self._network.cuts.append(Cut(one, other, world.now + seconds, one_way))

    def _lose_disk(self) -> None:
        """Have the follower begin with an empty disk, while the primary has everything."""
        if self._fails_over or self._promoted is not None or self._second.process is None:
            return
        self.count += 1
        core = self._second.core
        end = self._seen if core is None else core.store.replication.end
        self._whole_from = max(self._whole_from, end)
        self._world.tell(f"the disk of {_SECOND} is lost")
        self._second.process.kill()
        self._second.files.lose()
        self._world.after(self._world.chance.uniform(0.1, 2.0), self._second.start)

    # Another primary

    def _fail_over(self) -> None:
        """Have the follower take the primary's place, who may be dead, alive, or out of sight."""
        world, chance, first = self._world, self._world.chance, self._first
        if world.now > _CALM:
            return
        if not self._is_whole():
            world.after(0.2, self._fail_over)
            return
        self.count += 1
        self._fails_over = True
        how = chance.choice(("killed", "killed", "lost", "lost", "cut off", "alive"))
        world.tell(f"a fail-over: the primary is {how}")
        if how in ("killed", "lost"):
            first.is_off = True
            if first.process is not None:
                first.process.kill()
        if how == "lost":
            self._is_lost = True
            first.files.lose()
        if how == "cut off":
            self._cut_off()
        admin = world.process("admin", "apart")
        world.after(chance.uniform(0.0, 2.0), lambda: world.start(admin, self._promote))

    def _is_whole(self) -> bool:
        """Tell whether the follower has all that was ever answered."""
        core = _with_role(self._second, Role.FOLLOWER)
        if core is None or not core.replication.state.log or core.store.rebuilds.pending():
            return False
        primary = self._first.core
        if primary is None or not {*primary.topics, COUNTS} <= {*core.topics}:
            # What a table says is promised to be there some time later only.
            return False
        return core.store.replication.end >= self._whole_from

    def _promote(self) -> None:
        world, second = self._world, self._second
        command = Command(RequestCode.PROMOTE, {"force": "false"})
        while True:
            try:
                with Client(second.address, _ADMIN) as client:
                    client.invoke(second.address, command)
            except HeadraceError as error:
                world.tell(f"whoever promotes: {error.message[:90]}")
            core = _with_role(second, Role.PRIMARY)
            if core is not None:
                break
            sleep(world, 0.3)
        self._promoted = core.store.replication.epochs.newest
        self._known = {*core.topics}
        world.tell(f"{second.machine} is the primary, epoch {self._promoted.number}")
        self.on_arrival()
        world.after(world.chance.uniform(0.0, 6.0), self._come_back)

    def _come_back(self) -> None:
        """Start the old primary, as its command line says, or as a follower of the new one."""
        world, first = self._world, self._first
        if first.is_off and not self._waits and world.chance.random() < 0.3:
            world.tell(f"{first.machine} does not come back")
            return
        first.is_off = False
        if not self._is_lost and world.chance.random() < 0.6:
            first.start()
            world.after(world.chance.uniform(0.5, 4.0), self._follow)
        else:
            self._follow()

    def _follow(self) -> None:
        first = self._first
        self._world.tell(f"{first.machine} is to follow")
        first.settings = replace(first.settings, follow=self._second.address)
        if first.process is not None and not first.process.dead:
            first.crash(0.1)
        else:
            first.start()

    def restart_failed(self) -> None:
        """Start anew what only a start can mend."""
        self._second.restart_failed()


def _with_role(broker: EmbeddedCluster, role: Role) -> Core | None:
    core = broker.core
    return core if core is not None and core.replication.role is role else None


def _is_at(machine: str) -> Callable[[Process], bool]:
    return lambda process: process.machine == machine
