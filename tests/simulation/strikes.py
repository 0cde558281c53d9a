"""What strikes a simulated world: which kinds, how often and when, is drawn anew for each seed.

Not every seed has a little of everything: some kinds are left out and others come often, so that
what only happens where several of one kind meet is not drowned by the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.cluster import Drivers, EmbeddedCluster
from tests.simulation.network import TROUBLES, Network
from tests.simulation.rocketmq import RocketMQCluster
from tests.simulation.world import Process, World

if TYPE_CHECKING:
    from tests.simulation.disk import SimulatedDatabases
    from tests.simulation.operator import Operator
    from tests.simulation.processes import Points
    from tests.simulation.spark import SimulatedSession

#: Writes of a thousand, by clients, that meet with trouble.
_RATES = (0, 10, 40, 120)
#: From when on nothing strikes any more, s.
_CALM = 12.0
#: How often a kind comes in a seed, beside the others.
_WEIGHTS = (0, 1, 1, 4)
#: Passed by a driver that has sent a part of a batch.
_PUBLISHING = "journal.publish.sent"


class Machines:
    """The disks of the machines on which drivers and workers run: copies of state, change files.

    Parameters
    ----------
    databases
        All databases of copies.
    folder
        What each machine has there, in a folder of its name.
    """

    def __init__(self, databases: SimulatedDatabases, folder: Path) -> None:
        self._databases = databases
        self._folder = folder

    def cut_power(self, machine: str) -> None:
        """Leave of copies what they held some writes ago, and of other files a part or nothing."""
        chance = self._databases.world.chance
        self._databases.go_back(self._folder / machine)
        for path in sorted((self._folder / machine).rglob("*.arrow")):
            content = path.read_bytes()
            match chance.randrange(6):
                case 0:
                    path.unlink()
                case 1:
                    path.write_bytes(content[: chance.randint(0, len(content))])
                case 2:
                    at = chance.randint(0, len(content))
                    path.write_bytes(content[:at] + bytes(len(content) - at))

    def lose(self, machine: str) -> None:
        """Leave nothing of what a machine had: another one has its name now."""
        self._databases.lose(self._folder / machine)


class Strikes:
    """Strikes clusters, drivers and what belongs to them.

    Parameters
    ----------
    world, cluster, network, drivers, machines
        What is struck.
    operator
        Who may be called after that.
    """

    def __init__(
        self,
        world: World,
        cluster: EmbeddedCluster | RocketMQCluster,
        network: Network,
        drivers: Drivers,
        machines: Machines,
        operator: Operator,
    ) -> None:
        #: How often something was struck.
        self.count = 0
        self._world = world
        self._chance = world.chance
        self._cluster = cluster
        self._network = network
        self._drivers = drivers
        self._machines = machines
        self._operator = operator
        self._turns: dict[int, Callable[[], None]] = {}

    def plan(self, points: Points) -> None:
        """Choose what is going to happen: in half of all seeds much of one kind."""
        chance = self._chance
        theme = chance.choice(
            (
                self._plan_doubts,
                self._plan_late_calls,
                self._plan_machines,
                self._plan_power_cuts,
                self._plan_failed_syncs,
                self._plan_lost_outputs,
                self._plan_successors,
                *[self._plan_everything] * 5,
            )
        )
        theme(points)
        self._world.on_turn = self._on_turn
        self._world.at(_CALM, self.calm)

    def _plan_everything(self, points: Points) -> None:
        """Strike by some kinds, chosen anew."""
        chance, network = self._chance, self._network
        network.trouble = chance.choice(_RATES)
        network.troubles = chance.sample(TROUBLES, chance.randint(1, len(TROUBLES)))
        kinds = (
            self._kill_driver,
            self._kill_java,
            self._kill_worker,
            self._kill_planner,
            self._stop_driver,
            self._stop_worker,
            self._second_driver,
            self._crash_broker,
            self._cut_power,
            self._cut_power_of_machine,
            self._lose_machine,
        )
        weights = [chance.choice(_WEIGHTS) for _ in kinds]
        for _ in range(chance.choice((1, 2, 3, 4, 4, 7)) if any(weights) else 0):
            self._plan_one(*chance.choices(kinds, weights))
        if chance.random() < 0.5:
            for _ in range(chance.randint(1, 3)):
                where = chance.choice(
                    ("driver", "driver", "worker", "broker", "planner", "operator")
                )
                points.strikes[where, chance.randint(1, 60)] = self._strike_point
        if chance.random() < 0.25:
            self._fail_disk(chance.choice((5, 20, 60)))

    def _plan_doubts(self, points: Points) -> None:
        """Leave drivers in doubt whether what they ask for is done, mostly, and stop some."""
        chance, network = self._chance, self._network
        network.trouble = chance.choice((100, 200, 300))
        network.troubles = chance.choice((("answer lost",), ("answer late", "held up"), TROUBLES))
        network.whose = "driver"
        self._show_late()
        if isinstance(self._cluster, RocketMQCluster) and chance.random() < 0.5:
            self._cluster.keep_compacting()
        for _ in range(chance.randint(1, 3)):
            self._plan_one(chance.choice((self._stop_driver, self._kill_driver, self._kill_java)))

    def _plan_successors(self, points: Points) -> None:
        """End or stop drivers that have begun to publish, and let others go on meanwhile."""
        chance = self._chance
        self._show_late()
        for _ in range(chance.randint(2, 4)):
            where = chance.choice((_PUBLISHING, _PUBLISHING, "job.after_commit"))
            strike = chance.choice((Process.kill, self._replace))
            points.strikes[where, chance.randint(1, 12)] = strike

    def _show_late(self) -> None:
        """Have RocketMQ show late what it has stored, mostly."""
        if isinstance(self._cluster, RocketMQCluster) and self._chance.random() < 0.7:
            self._cluster.show_late()

    def _replace(self, driver: Process) -> None:
        """Stop a driver with all that is its own, and start another one."""
        self.count += 1
        self._put_to_sleep(driver)
        self._drivers.start_another()

    def _plan_late_calls(self, points: Points) -> None:
        """Let Java die under what its batch function has begun, and that take a while."""
        for _ in range(self._chance.randint(2, 5)):
            where, most = self._chance.choice((("driver", 60), (_PUBLISHING, 10)))
            points.strikes[where, self._chance.randint(1, most)] = self._outlive_java
        self._network.trouble = self._chance.choice((0, 40))

    def _plan_machines(self, points: Points) -> None:
        """Take from machines what they have, at any step of a commit, or right behind it."""
        chance = self._chance
        if chance.random() < 0.5:
            # What one driver leaves there, its successor finds.
            self._drivers.machines = self._drivers.machines[:1]
        for _ in range(chance.randint(2, 6)):
            kinds = (self._cut_power_of_machine, self._cut_power_of_machine, self._lose_machine)
            where, most = chance.choice((("driver", 80), ("job.after_commit", 12)))
            strike = partial(_without_process, chance.choice(kinds))
            points.strikes[where, chance.randint(1, most)] = strike

    def _plan_power_cuts(self, points: Points) -> None:
        """Let brokers end by a power cut again and again, on disks that fail."""
        self._fail_disk(self._chance.choice((0, 20, 60)))
        for _ in range(self._chance.randint(1, 3)):
            points.strikes["broker", self._chance.randint(1, 60)] = self._strike_point
            self._plan_one(self._cut_power)

    def _plan_failed_syncs(self, points: Points) -> None:
        """Let syncs of brokers fail, and power soon after, on disks that fail."""
        chance, cluster = self._chance, self._cluster
        for _ in range(chance.randint(1, 3)):
            points.strikes["broker", chance.randint(5, 80)] = self._fail_sync
        if isinstance(cluster, EmbeddedCluster):
            cluster.files.trouble = chance.choice((0, 20))
            cluster.files.on_failed_sync = self._cut_power_soon

    def _fail_sync(self, _: Process) -> None:
        self.count += 1
        if isinstance(self._cluster, EmbeddedCluster):
            self._cluster.files.failing_syncs = 1

    def _cut_power_soon(self) -> None:
        if self._world.now < _CALM:
            # By then it has started anew, and has taken more.
            self._world.after(self._chance.uniform(0.3, 2.5), self._cut_power)

    def _plan_lost_outputs(self, points: Points) -> None:
        """Have Spark make again, often, what a stage had made for the next."""
        del points
        self._drivers.losses = 0.4
        for _ in range(self._chance.randint(1, 4)):
            self._plan_one(self._kill_worker)

    def _plan_one(self, kind: Callable[[], None]) -> None:
        if self._chance.random() < 0.7:
            self._turns[int(10 ** self._chance.uniform(2.3, 3.6))] = kind
        else:
            self._world.at(self._chance.uniform(0.3, 6.0), kind)

    def _fail_disk(self, trouble: int) -> None:
        if isinstance(self._cluster, EmbeddedCluster):
            self._cluster.files.trouble = trouble

    def calm(self) -> None:
        """Strike no more."""
        self._network.trouble = 0
        self._fail_disk(0)
        self._turns.clear()

    def plan_moves(self, points: Points) -> None:
        """Kill drivers behind commits, so that others go on elsewhere, beside older copies."""
        for hit in self._chance.sample(range(2, 30), 4):
            points.strikes["job.after_commit", hit] = Process.kill

    def _on_turn(self) -> None:
        strike = self._turns.pop(self._world.turns, None)
        if strike is not None:
            strike()

    def _strike_point(self, process: Process) -> None:
        self.count += 1
        if process.name.startswith("broker"):
            self._crash(self._chance.uniform(0.05, 1.0), power=self._chance.random() < 0.5)
        elif self._drivers.session(process) is not None and self._chance.random() < 0.4:
            self._outlive_java(process)
        elif self._chance.random() < 0.2:
            # Of what was done for it elsewhere, a part may be gone.
            self._cut_power_of_machine()
        elif self._chance.random() < 0.3:
            process.sleep(self._chance.uniform(0.5, 8.0))
        else:
            process.kill()
            if self._chance.random() < 0.3:
                self._operator.end_job()

    def _outlive_java(self, process: Process) -> None:
        """Let a batch function go on when nobody waits for it any more."""
        if (session := self._drivers.session(process)) is not None:
            self.count += 1
            session.java.kill()
            if self._chance.random() < 0.5:
                # What it has begun takes a while now.
                self._crash(self._chance.choice((0.5, 1.5, 3.0)))

    def _driver(self) -> Process | None:
        alive = self._drivers.alive
        return self._chance.choice(alive) if alive else None

    def _session(self) -> SimulatedSession | None:
        driver = self._driver()
        return None if driver is None else self._drivers.session(driver)

    def _kill_driver(self) -> None:
        if (driver := self._driver()) is not None:
            self.count += 1
            driver.kill()

    def _kill_java(self) -> None:
        if (session := self._session()) is not None:
            self.count += 1
            session.java.kill()

    def _kill_worker(self) -> None:
        if (session := self._session()) is not None:
            self.count += 1
            self._chance.choice(session.workers).kill()

    def _kill_planner(self) -> None:
        planners = [p for p in self._world.processes if ".planner." in p.name and not p.dead]
        if planners:
            self.count += 1
            self._chance.choice(planners).kill()

    def _stop_driver(self) -> None:
        """Stop a driver with all that is its own, for a while in which another may take over."""
        if (driver := self._driver()) is None:
            return
        self.count += 1
        self._put_to_sleep(driver)
        if self._chance.random() < 0.8:
            self._drivers.start_another()

    def _put_to_sleep(self, driver: Process) -> None:
        seconds = self._chance.uniform(0.5, 8.0)
        for process in self._world.processes:
            if process is driver or process.name.startswith(f"{driver.name}."):
                process.sleep(seconds)

    def _stop_worker(self) -> None:
        if (session := self._session()) is not None:
            self.count += 1
            self._chance.choice(session.workers).sleep(self._chance.uniform(0.1, 8.0))

    def _second_driver(self) -> None:
        if self._drivers.processes:
            self.count += 1
            self._drivers.start_another()

    def _crash_broker(self) -> None:
        self.count += 1
        self._crash(self._chance.choice((0.2, 1.0, 2.0, 7.0)))

    def _cut_power(self) -> None:
        self.count += 1
        self._crash(self._chance.uniform(0.05, 2.0), power=True)

    def _cut_power_of_machine(self) -> None:
        machine = self._end_machine()
        self._world.tell(f"power of {machine} is cut")
        self._machines.cut_power(machine)

    def _lose_machine(self) -> None:
        machine = self._end_machine()
        self._world.tell(f"{machine} is lost")
        self._machines.lose(machine)

    def _end_machine(self) -> str:
        """Kill all that runs on a machine of drivers and workers."""
        self.count += 1
        machine = self._chance.choice(self._drivers.machines)
        for process in self._world.processes:
            if process.machine == machine:
                process.kill()
        return machine

    def _crash(self, seconds: float, *, power: bool = False) -> None:
        if isinstance(self._cluster, EmbeddedCluster):
            self._cluster.crash(seconds, power=power)
        else:
            self._cluster.crash(seconds)


def _without_process(strike: Callable[[], None], _: Process) -> None:
    strike()
