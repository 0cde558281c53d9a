"""One seed: a job from its first record to its last, whatever happens on the way."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

from headrace.broker import BrokerSettings
from headrace.client import Admin, Client, ClientSettings, Message, Producer
from headrace.errors import HeadraceError
from headrace.store.compaction import CompactionSettings
from tests.simulation.checks import Checks
from tests.simulation.cluster import HOST, PORT, Drivers, EmbeddedCluster, job_settings
from tests.simulation.job import COUNTS, JOB, JOBS, KEYS, LAST, LINES, QUEUES, RESULTS
from tests.simulation.journal_checks import JournalChecks
from tests.simulation.mutants import Mutant
from tests.simulation.network import Network
from tests.simulation.processes import processes_of, variables
from tests.simulation.rocketmq import RocketMQCluster
from tests.simulation.spark import SimulatedSession
from tests.simulation.threads import sleep
from tests.simulation.world import Process, StuckError, ViolationError, World

_RATES = (0, 10, 40, 120)
#: From when on nothing strikes any more, and by when all must be done, s.
_CALM, _END = 12.0, 60.0
#: One seed on RocketMQ of so many ends with a compaction and drivers without copies of state.
_ANEW = 4
_USER = ClientSettings(
    request_timeout=timedelta(seconds=0.5),
    connect_timeout=timedelta(seconds=20),
    retry_timeout=timedelta(seconds=20),
)


@dataclass(frozen=True)
class Story:
    """What became of a seed."""

    seed: int
    wrong: str | None
    log: list[str] = field(repr=False)
    batches: int = 0
    strikes: int = 0
    turns: int = 0
    embedded: bool = True

    def __str__(self) -> str:
        told = "\n".join(self.log[-120:])
        where = "" if self.embedded else " --rocketmq"
        again = f"python -m tests.simulation --seed {self.seed}{where}"
        return f"{told}\n  => {self.wrong}\nagain: {again}"


class Simulation:
    """A cluster, its drivers, and what strikes them."""

    def __init__(self, world: World, mutant: Mutant, *, embedded: bool) -> None:
        self.world = world
        self._chance = world.chance
        self._mutant = mutant
        self._embedded = embedded
        self.checks: Checks | JournalChecks
        #: What runs: in half of all seeds the job of which most is checked.
        self._job = JOBS[0 if world.seed % 2 else world.seed // 2 % len(JOBS)]
        self.strikes = 0
        self._stacks = ""
        self._sent = False
        self._wakes: list[Callable[[], None]] = []
        self._strike_turns: dict[int, Callable[[], None]] = {}

    def run(self, folder: Path) -> None:
        """Run until everything is committed.

        Raises
        ------
        ViolationError
            Something was lost, doubled, made up, or never came.
        """
        world, chance = self.world, self._chance
        with ExitStack() as stack:
            points, _, numbers = stack.enter_context(processes_of(world))
            stack.enter_context(self._mutant.applied())
            self._network = Network(world, chance.choice(_RATES))
            self.cluster: EmbeddedCluster | RocketMQCluster
            if self._embedded:
                settings = BrokerSettings(
                    guards=self._mutant.guards,
                    save_interval=timedelta(seconds=2),
                    segment_size=chance.choice((2 << 10, 16 << 10, 256 << 20)),
                    compaction=CompactionSettings(
                        file_size=chance.choice((2 << 10, 128 << 20)), dirty_ratio=0.1
                    ),
                )
                self.cluster = EmbeddedCluster(world, self._network, folder / "broker", settings)
                stack.enter_context(self.cluster.applied())
                self.checks = Checks(self._job)
                self.cluster.start()
            else:
                self.cluster = RocketMQCluster(world, self._network, chance.choice((1, 1, 2, 3)))
                self.checks = JournalChecks(self.cluster.brokers, self._job)
            partitions = chance.choice((1, 2))
            self._drivers = Drivers(
                world,
                numbers,
                self._job.topology,
                job_settings(
                    folder / "state",
                    partitions=partitions,
                    max_records_per_batch=chance.choice((1, 2, 3, 5)),
                ),
            )
            stack.enter_context(self._drivers.applied())
            world.haste = chance.choice((20, 100, 300))
            self._failure: ViolationError | None = None
            self.cluster.on_arrival = self._look_soon
            world.start(world.process("user", "apart"), self._use)
            self._checker = world.process("checker", "apart")
            self._plan_strikes(points.strikes)
            world.on_turn = self._on_turn
            world.run(lambda: self._has_failed() or self._is_done() or world.now > _END)
            self._finish()
            if isinstance(self.checks, JournalChecks) and world.seed % _ANEW == 1:
                self._begin_anew(self.checks)

    def _finish(self) -> None:
        """Let what is under way arrive, which must change nothing, and everything be committed."""
        world = self.world
        self._strike_turns.clear()
        until = world.now + 1.0
        end = max(_END, world.now + _END / 2)
        world.run(lambda: self._has_failed() or world.now > until)
        world.run(lambda: self._has_failed() or self._is_done() or world.now > end)
        if not self._has_failed() and not self._is_done():
            self._stacks = world.stacks()
            wrong = self.checks.disagreement() or "not all is committed"
            raise ViolationError(f"after {end:.0f} s: {wrong}")
        if isinstance(self.checks, JournalChecks):
            self.checks.finish()
        if self._failure is not None:
            raise self._failure

    def _begin_anew(self, checks: JournalChecks) -> None:
        """Compact the job's own topics, and let a driver without copies go on from them.

        Before that a message of state arrives that was held up since the first batch.
        """
        world, cluster = self.world, self.cluster
        assert isinstance(cluster, RocketMQCluster)
        self._calm()
        cluster.send_late(self._job.topology.state_topics.values())
        for machine in ("machine-0", "machine-new"):
            for driver in self._drivers.alive:
                driver.kill()
            if machine == "machine-new":
                checks.look()
                if checks.hidden():
                    raise ViolationError(f"compaction would lose {checks.hidden()} keys of state")
                cluster.compact()
            self._drivers.machines = (machine,)
            self._sent = False
            world.start(world.process("user", "apart"), self._send_one)
            self._finish()

    def _send_one(self) -> None:
        with Client(f"{HOST}:{PORT}", _USER) as client:
            message = Message(topic=LINES, body=b"a-99")
            self._persist(partial(Producer(client).send, message))
        self._sent = True

    def _has_failed(self) -> bool:
        self._failure = self._failure or self._drivers.failure
        return self._failure is not None

    def _is_done(self) -> bool:
        return self._sent and self.checks.is_done()

    # Looking

    def _look_soon(self) -> None:
        if isinstance(self.cluster, EmbeddedCluster):
            self.world.start(self._checker, self._look)
        elif not self._has_failed():
            assert isinstance(self.checks, JournalChecks)
            try:
                self.checks.look()
            except ViolationError as error:
                self._failure = error

    def _look(self) -> None:
        assert isinstance(self.cluster, EmbeddedCluster)
        assert isinstance(self.checks, Checks)
        world, core = self.world, self.cluster.core
        if core is None or self._has_failed():
            return
        # Nobody else has a turn meanwhile, so all that is seen is of one moment.
        haste, world.haste = world.haste, 0
        try:
            self.checks.look(core)
        except ViolationError as error:
            self._failure = error
        finally:
            world.haste = haste

    # Records

    def _use(self) -> None:
        """Make the topics, and send lines, as somebody does who has nothing to do with the job."""
        chance = random.Random(f"{self.world.seed} lines")
        with Client(f"{HOST}:{PORT}", _USER) as client:
            admin = Admin(client)
            retries = () if self._embedded else (f"%RETRY%{JOB}",)
            for topic in (*self._job.inputs, RESULTS, COUNTS, *retries):
                self._persist(partial(admin.create_topic, topic, queues=QUEUES))
            self._drivers.start()
            self.world.after(0.5, self._keep)
            producer = Producer(client)
            for number in range(chance.randint(5, 20)):
                topic = chance.choice(self._job.inputs)
                line = f"{chance.choice(KEYS)}-{number}"
                self._persist(partial(producer.send, Message(topic=topic, body=line.encode())))
                sleep(self.world, chance.choice((0.0, 0.0, 0.05, 0.3, 0.8)))
            if self.checks.expects.only_at_end:
                # What is held up must not come too late for its window.
                sleep(self.world, 5.0)
                for topic in self._job.inputs:
                    for queue in client.queues(topic, for_="write"):
                        message = Message(topic=topic, body=LAST.encode())
                        self._persist(partial(producer.send, message, queue))
        self._sent = True

    def _persist(self, run: Callable[[], object]) -> None:
        """Try something until it is done; what is sent may be there twice."""
        while True:
            try:
                run()
            except HeadraceError as error:
                self.world.tell(f"the user tries again after: {error.message[:90]}")
                sleep(self.world, 0.2)
            else:
                return

    def _keep(self) -> None:
        """Start a driver where there is none, as a supervisor does."""
        if not self._drivers.alive:
            self._drivers.start()
        core = self.cluster.core if isinstance(self.cluster, EmbeddedCluster) else None
        if core is not None and core.store._writer.failure is not None:
            # Its log says so, and that only a start knows what is on the disk.
            self._crash(0.1)
        self.world.after(0.2, self._keep)

    # What strikes

    def _plan_strikes(self, points: dict[tuple[str, int], Callable[[Process], None]]) -> None:
        chance = self._chance
        kinds = (
            self._kill_driver,
            self._kill_java,
            self._kill_worker,
            self._kill_worker,
            self._kill_planner,
            self._stop_driver,
            self._stop_worker,
            self._second_driver,
            self._crash_broker,
            self._cut_power,
        )
        for _ in range(chance.randint(1, 4)):
            kind = chance.choice(kinds)
            if chance.random() < 0.7:
                self._strike_turns[int(10 ** chance.uniform(2.3, 3.6))] = kind
            else:
                self.world.at(chance.uniform(0.3, 6.0), kind)
        if chance.random() < 0.5:
            for _ in range(chance.randint(1, 3)):
                where = chance.choice(("driver", "driver", "worker", "broker", "planner"))
                points[where, chance.randint(1, 60)] = self._strike_point
        if isinstance(self.cluster, EmbeddedCluster) and chance.random() < 0.25:
            self.cluster.files.trouble = chance.choice((5, 20, 60))
        self.world.at(_CALM, self._calm)

    def _calm(self) -> None:
        self._network.trouble = 0
        if isinstance(self.cluster, EmbeddedCluster):
            self.cluster.files.trouble = 0
        self._strike_turns.clear()

    def _on_turn(self) -> None:
        strike = self._strike_turns.pop(self.world.turns, None)
        if strike is not None:
            strike()

    def _strike_point(self, process: Process) -> None:
        self.strikes += 1
        if process.name.startswith("broker"):
            self._crash(self._chance.uniform(0.05, 1.0), power=self._chance.random() < 0.5)
        elif (
            session := self._drivers.session(process)
        ) is not None and self._chance.random() < 0.4:
            session.java.kill()
            if self._chance.random() < 0.5:
                # What the batch function has begun takes a while now.
                self._crash(self._chance.choice((0.5, 1.5, 3.0)))
        elif self._chance.random() < 0.3:
            process.sleep(self._chance.uniform(0.5, 8.0))
        else:
            process.kill()

    def _driver(self) -> Process | None:
        alive = self._drivers.alive
        return self._chance.choice(alive) if alive else None

    def _session(self) -> SimulatedSession | None:
        driver = self._driver()
        return None if driver is None else self._drivers.session(driver)

    def _kill_driver(self) -> None:
        if (driver := self._driver()) is not None:
            self.strikes += 1
            driver.kill()

    def _kill_java(self) -> None:
        if (session := self._session()) is not None:
            self.strikes += 1
            session.java.kill()

    def _kill_worker(self) -> None:
        if (session := self._session()) is not None:
            self.strikes += 1
            self._chance.choice(session.workers).kill()

    def _kill_planner(self) -> None:
        planners = [p for p in self.world.processes if ".planner." in p.name and not p.dead]
        if planners:
            self.strikes += 1
            self._chance.choice(planners).kill()

    def _stop_driver(self) -> None:
        """Stop a driver with all that is its own, for a while in which another may take over."""
        if (driver := self._driver()) is None:
            return
        self.strikes += 1
        seconds = self._chance.uniform(0.5, 8.0)
        for process in self.world.processes:
            if process is driver or process.name.startswith(f"{driver.name}."):
                process.sleep(seconds)
        if self._chance.random() < 0.8:
            self._drivers.start()

    def _stop_worker(self) -> None:
        if (session := self._session()) is not None:
            self.strikes += 1
            self._chance.choice(session.workers).sleep(self._chance.uniform(0.1, 8.0))

    def _second_driver(self) -> None:
        if self._drivers.processes:
            self.strikes += 1
            self._drivers.start()

    def _crash_broker(self) -> None:
        self.strikes += 1
        self._crash(self._chance.choice((0.2, 1.0, 2.0, 7.0)))

    def _cut_power(self) -> None:
        self.strikes += 1
        self._crash(self._chance.uniform(0.05, 2.0), power=True)

    def _crash(self, seconds: float, *, power: bool = False) -> None:
        if isinstance(self.cluster, EmbeddedCluster):
            self.cluster.crash(seconds, power=power)
        else:
            self.cluster.crash(seconds)


_warm: list[bool] = []


def simulate(
    seed: int, folder: Path, mutant: Mutant | None = None, *, embedded: bool = True
) -> Story:
    """Run a seed, and tell what became of it."""
    if not _warm:
        # What is loaded when it is first used makes a difference.
        _warm.append(True)
        simulate(0, folder)
        # Each seed ends with a look for garbage, which need not go through all that is loaded.
        gc.freeze()
    shutil.rmtree(folder, ignore_errors=True)
    world = World(seed, variables(lambda: world))
    simulation, wrong = Simulation(world, mutant or Mutant(), embedded=embedded), None
    logging.disable(logging.CRITICAL)
    try:
        simulation.run(folder)
    except (ViolationError, StuckError) as error:
        wrong = str(error)
    except HeadraceError as error:
        wrong = f"{type(error).__name__}: {error}"
    finally:
        logging.disable(logging.NOTSET)
    if os.environ.get("STACKS"):
        world.log += simulation._stacks.splitlines()
    batches = len(simulation.checks.commits)
    return Story(seed, wrong, world.log, batches, simulation.strikes, world.turns, embedded)


__all__ = ["Simulation", "Story", "simulate"]
