"""Machines that are cut off from each other for a while, both ways or one way."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import HeadraceError, TopicNotFoundError
from tests.simulation.cluster import Drivers, EmbeddedCluster
from tests.simulation.network import Cut, Network
from tests.simulation.rocketmq import RocketMQCluster
from tests.simulation.world import Process, World

__all__ = ["Cuts"]

_SECONDS = (0.5, 15.0)
#: How long it may take until what a name server has said is heard, s.
_ANSWERED = 4.0


class Cuts:
    """Cuts drivers, workers and whole machines off from brokers, and brokers from name servers.

    Parameters
    ----------
    world, network, cluster, drivers
        What is cut.
    forgets
        Tells whether name servers may forget brokers now.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        cluster: EmbeddedCluster | RocketMQCluster,
        drivers: Drivers,
        *,
        forgets: Callable[[], bool],
    ) -> None:
        self._world = world
        self._network = network
        self._cluster = cluster
        self._drivers = drivers
        self._forgets = forgets
        #: From when on the name server knows all topics.
        self._known_from = -1e9
        self._others_forgive, drivers.forgives = drivers.forgives, self._forgives
        for _ in range(world.chance.choice((1, 1, 2, 3))):
            world.at(world.chance.uniform(0.5, 6.0), self._cut)

    def _forgives(self, error: HeadraceError) -> bool:
        """Let a driver end that is told of a topic that there is none, and that it may be away."""
        is_forgotten = self._world.now < self._known_from + _ANSWERED
        return self._others_forgive(error) or (
            is_forgotten and isinstance(error, TopicNotFoundError)
        )

    def _cut(self) -> None:
        chance, world = self._world.chance, self._world
        seconds, one_way = chance.uniform(*_SECONDS), chance.random() < 0.4
        forgotten = self._forgets() and chance.random() < 0.2
        if forgotten and isinstance(self._cluster, RocketMQCluster):
            # Nothing is sent between them here but what makes the name server know a broker.
            broker = chance.choice(self._cluster.brokers[1:] or self._cluster.brokers)
            world.tell(f"the name server forgets {broker.name} for {seconds:.1f} s")
            broker.known_from = world.now + seconds
            self._known_from = max(self._known_from, broker.known_from)
            return
        what, side = self._side()
        broker_name, brokers = self._broker()
        sides = (side, brokers) if chance.random() < 0.5 else (brokers, side)
        how = "one way" if one_way else "both ways"
        world.tell(f"{what} and {broker_name} are cut off, {how}, for {seconds:.1f} s")
        self._network.cuts.append(Cut(*sides, world.now + seconds, one_way))
        if chance.random() < 0.5:
            # Somebody has noticed, and starts another one.
            world.after(seconds * chance.random(), self._drivers.start_another)

    def _side(self) -> tuple[str, Callable[[Process], bool]]:
        chance, alive = self._world.chance, self._drivers.alive
        if not alive or chance.random() < 0.5:
            machine = chance.choice(self._drivers.machines)
            return machine, lambda process: process.machine == machine
        driver = chance.choice(alive)
        session = self._drivers.session(driver)
        if session is None or chance.random() < 0.4:
            return driver.name, lambda process: process is driver
        worker = chance.choice(session.workers)
        return worker.name, lambda process: process is worker

    def _broker(self) -> tuple[str, Callable[[Process], bool]]:
        if isinstance(self._cluster, EmbeddedCluster):
            return "the broker", lambda process: process.machine == "broker"
        name = self._world.chance.choice(self._cluster.brokers).name
        return name, lambda process: process.name == name
