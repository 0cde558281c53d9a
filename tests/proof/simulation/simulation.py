"""One seed: a job from its first record to its last, whatever happens on the way."""

from __future__ import annotations

import random
import shutil
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from headrace.errors import HeadraceError
from headrace.protocol.columns import record_starts
from headrace.protocol.records import Records
from headrace.runtime.state import local
from headrace.settings import JobSettings
from headrace.topology.names import journal_topic
from tests.proof.simulation.broker import HOST, NAME_SERVER, SimulatedBroker
from tests.proof.simulation.checks import Checks, ViolationError
from tests.proof.simulation.disk import SimulatedBatch, SimulatedDisk
from tests.proof.simulation.driver import SimulatedDriver, client_settings
from tests.proof.simulation.job import COUNTS, IDS, KEYS, LINES, QUEUES, topology
from tests.proof.simulation.journal_checks import JournalChecks
from tests.proof.simulation.mutants import Mutant
from tests.proof.simulation.network import Network
from tests.proof.simulation.threads import threads_of
from tests.proof.simulation.world import Killed, Process, StuckError, World

_MACHINES = 24
_EXECUTORS = 2
_MOST_STEPS = 400
_UNDER_WAY = 5.0
_MOST_WAITS = 100
#: One seed of so many ends with a compaction and a driver that has no copies of state.
_ANEW = 4
#: In one seed of so many something strikes at failpoints, too.
_POINTS = 5
#: One seed of so many has two brokers.
_SEVERAL = 3


@dataclass(frozen=True)
class Story:
    """What became of a seed."""

    seed: int
    wrong: str | None
    log: list[str] = field(repr=False)
    batches: int = 0
    strikes: int = 0
    embedded: bool = True

    def __str__(self) -> str:
        told = "\n".join(self.log[-60:])
        again = f"python -m tests.proof.simulation --seed {self.seed}"
        where = "" if self.embedded else " --rocketmq"
        return f"{told}\n  => {self.wrong}\nagain: {again}{where}"


class _DoneError(BaseException):
    """All is done; whoever waits need not go on."""


class Simulation:
    """A cluster, its drivers, and what strikes them.

    Parameters
    ----------
    seed
        Where all chance comes from.
    folder
        For the files of executors.
    mutant
        What is broken on purpose.
    """

    def __init__(
        self, seed: int, folder: Path, mutant: Mutant | None = None, *, embedded: bool = True
    ) -> None:
        self._embedded = embedded
        self._stack: list[SimulatedDriver] = []
        self._mutant = mutant or Mutant()
        self.world = World(seed)
        self._chance = self.world.chance
        self.broker = SimulatedBroker(self.world, self._mutant.guards, embedded=embedded)
        self.brokers = self.broker.peers
        if not embedded and seed % _SEVERAL == 1:
            SimulatedBroker(self.world, embedded=False, peers=self.brokers)
        handles = {broker.port: broker.handle for broker in self.brokers}
        self.network = Network(self.world, handles, trouble=self._chance.choice(_RATES))
        #: Whether every request arrives at once: then nothing may be there twice for anybody.
        self._calm = self.network.trouble == 0
        self.checks: Checks | JournalChecks = (
            Checks(self.broker) if embedded else JournalChecks(self.brokers)
        )
        self.world.on_sleep = self._step_another
        self.broker.on_commit = lambda _: self.checks.look()
        for broker in self.brokers:
            broker.on_send = self._sent_to
        self.disk = SimulatedDisk()
        self._folder = folder
        self._partitions = self._chance.choice((1, 2))
        self._settings = JobSettings(
            namesrv=f"{HOST}:{NAME_SERVER}",
            data_dir=folder,
            partitions=self._partitions,
            max_records_per_batch=self._chance.choice((1, 2, 3, 5)),
            **client_settings(),
        )
        self._machines = [folder / f"machine-{number}" for number in range(_MACHINES)]
        self._drivers: list[tuple[SimulatedDriver, Generator[str, None, None]]] = []
        self._started = 0
        self._steps = 0
        self._waits = 0
        self._sleeps = 0
        self._sent = 0

    def run(self) -> None:
        """Run until everything is committed.

        Raises
        ------
        ViolationError
            Something was lost, doubled, made up, or never came.
        """
        self._prepare()
        with suppress(_DoneError):
            while not self._is_done():
                self._step()
        # What is still under way arrives, and must change nothing.
        self.world.pass_time(_UNDER_WAY)
        self.checks.finish(calm=self._calm)
        if isinstance(self.checks, JournalChecks) and self.world.seed % _ANEW == 0:
            self._begin_anew(self.checks)
            self.checks.finish(calm=self._calm)

    def _begin_anew(self, checks: JournalChecks) -> None:
        """Compact the job's own topics, and let a driver without copies go on from them.

        Before that a message of state arrives that was held up since the first batch.
        """
        self._calm = False
        self._send_late()
        self.network.trouble = 0
        self.world.strikes.clear()
        self.world.point_strikes.clear()
        self._steps = 0
        for compacts in (False, True):
            self._kill_all()
            if compacts:
                checks.look()
                if checks.hidden():
                    raise ViolationError(f"compaction would lose {checks.hidden()} keys of state")
                self.broker.compact()
                # Nobody has used the last ones.
                self._machines.reverse()
            self._records += 1
            with suppress(_DoneError):
                while not self._is_done():
                    self._step()

    def _send_late(self) -> None:
        for topic in topology.state_topics.values():
            for number, queue in enumerate(self.broker.topics[topic]):
                if queue.records:
                    data = bytearray(queue.records[0])
                    self.broker.append(topic, number, Records(data, record_starts(data)))

    def _kill_all(self) -> None:
        for driver, steps in self._drivers:
            driver.kill()
            with self.world.inside(driver.process):
                steps.close()
        self._drivers.clear()

    def end(self) -> None:
        """Kill what still runs."""
        self._kill_all()

    def _prepare(self) -> None:
        for broker in self.brokers:
            for topic in (LINES, IDS, COUNTS):
                broker.create(topic, QUEUES)
        self.broker.create(topology.commit_topic, 1)
        self.broker.create(journal_topic(topology.name), self._partitions)
        self.broker.create(f"%RETRY%{topology.name}", 1)
        for topic in topology.state_topics.values():
            self.broker.create(topic, self._partitions)
        self._records = self._chance.randint(4, 10)
        self._send(self._chance.randint(1, self._records))
        kinds = (self._kill_driver, self._kill_process, self._sleep, self._sleep, self._restart)
        # Chances of their own, so that failpoints that are added change no other story.
        points = random.Random(f"{self.world.seed} points")
        for _ in range(0 if self.world.seed % _POINTS else points.randint(1, 3)):
            self.world.point_strikes[points.randint(1, 80)] = points.choice(kinds[:-1])
        for _ in range(self._chance.randint(1, 4)):
            call = self._chance.randint(1, 70)
            self.world.strikes[call] = self._chance.choice(kinds), self._chance.randrange(6)

    def _send(self, count: int) -> None:
        for _ in range(count):
            line = f"{self._chance.choice(KEYS)}-{self._sent}"
            broker = self._chance.choice(self.brokers) if len(self.brokers) > 1 else self.broker
            broker.send(LINES, self._chance.randrange(QUEUES), [line.encode()])
            self._sent += 1

    def _is_done(self) -> bool:
        """Tell whether all records are sent, committed and published."""
        if self._sent < self._records or not self.checks.commits:
            return False
        if not self.checks.is_published():
            return False
        offsets = self.checks.commits[-1].offsets
        return all(
            offsets.get(f"{LINES}@{broker.name}@{number}", 0) == len(queue.records)
            for broker in self.brokers
            for number, queue in enumerate(broker.topics[LINES])
        )

    def _step(self) -> None:
        """Let one driver do one step; see to it that there is one."""
        self._steps += 1
        if self._steps == _MOST_STEPS // 2:
            # From here on nothing strikes: now the job must come to its end.
            self.network.trouble = 0
            self.world.strikes.clear()
        if self._steps > _MOST_STEPS:
            raise ViolationError(f"not all is committed after {_MOST_STEPS} steps")
        if self._sent < self._records and self._chance.random() < 0.3:
            self._send(1)
        awake = self._awake()
        if not awake:
            awake = [self._start_driver()]
        driver, steps = self._chance.choice(awake)
        self._stack.append(driver)
        try:
            with self.world.inside(driver.process):
                next(steps)
            return
        except StopIteration:
            self.world.tell(f"{driver.name} has ended")
        except Killed:
            self.world.tell(f"{driver.name} is dead")
        except HeadraceError as error:
            raise ViolationError(
                f"{driver.name} failed: {type(error).__name__}: {error}"
            ) from error
        finally:
            self._stack.remove(driver)
        driver.kill()
        self._drivers.remove((driver, steps))

    def _awake(self) -> list[tuple[SimulatedDriver, Generator[str, None, None]]]:
        """Give the drivers that can do a step now."""
        return [
            one for one in self._drivers if not one[0].process.asleep and one[0] not in self._stack
        ]

    def _step_another(self) -> None:
        """Let another driver do a step while one waits; end the run when all is done."""
        if self._stack and self._awake():
            if self._is_done():
                raise _DoneError
            self._step()
        elif len(self._stack) > 1:
            # The one below waits as well, holds the lock, and cannot go on before this one ends.
            self._waits += 1
            if self._waits % _MOST_WAITS == 0:
                self._kill_driver(self._stack[-1].process)

    def _sent_to(self, topic: str) -> None:
        if topic in (topology.commit_topic, IDS, COUNTS, *topology.state_topics.values()):
            self.checks.look()

    def _start_driver(self) -> tuple[SimulatedDriver, Generator[str, None, None]]:
        self._started += 1
        used = {machine for driver, _ in self._drivers for machine in driver.machines}
        free = [machine for machine in self._machines if machine not in used]
        driver = SimulatedDriver(
            self.world,
            self._process,
            f"driver {self._started}",
            topology,
            free[:_EXECUTORS],
            self._settings,
            self.disk,
            embedded=self._embedded,
        )
        driver.queues = {
            topic: [
                f"{topic}@{broker.name}@{number}"
                for broker in self.brokers
                for number in range(len(broker.topics.get(topic, ())))
            ]
            for topic in self.broker.topics
        }
        started = driver, driver.steps()
        self._drivers.append(started)
        return started

    def _process(self, name: str) -> Process:
        process = Process(self.world, name)
        process.loop.connect = self.network.connect
        return process

    def _driver_of(self, process: Process) -> SimulatedDriver:
        return next(one for one, _ in self._drivers if process in one.processes)

    # What strikes

    def _kill_driver(self, process: Process) -> None:
        driver = self._driver_of(process)
        self.world.tell(f"{driver.name} is killed")
        driver.kill()
        raise Killed

    def _kill_process(self, process: Process) -> None:
        driver = self._driver_of(process)
        if process is driver.process:
            self._kill_driver(process)
        self.world.tell(f"{process.name} is killed")
        process.kill()
        raise Killed

    def _restart(self, _: Process) -> None:
        broker = self._chance.choice(self.brokers) if len(self.brokers) > 1 else self.broker
        self.world.tell(f"{broker.name} is killed and starts anew")
        self.network.restart(broker.port, self._chance.uniform(0.05, 0.5))
        broker.restart()
        if isinstance(self.checks, JournalChecks):
            self.checks.look()
            # Before a driver has made up for late messages, compaction would lose what they hide.
            if not self.checks.hidden():
                self.world.tell(f"{broker.name} compacts")
                broker.compact()

    def _sleep(self, process: Process) -> None:
        """Let a driver sleep wherever it is, another one run for a while, and the first wake."""
        driver = self._driver_of(process)
        if self._sleeps:
            return
        self._sleeps += 1
        self.world.tell(f"{driver.name} falls asleep")
        driver.sleep(asleep=True)
        for _ in range(self._chance.randint(1, 14)):
            self._step()
        self._sleeps -= 1
        driver.sleep(asleep=False)
        self.world.tell(f"{driver.name} wakes up")


_RATES = (0, 10, 30, 60, 120)


def simulate(
    seed: int, folder: Path, mutant: Mutant | None = None, *, embedded: bool = True
) -> Story:
    """Run a seed, and tell what became of it."""
    shutil.rmtree(folder, ignore_errors=True)
    simulation = Simulation(seed, folder, mutant, embedded=embedded)
    world, wrong = simulation.world, None
    with (
        world.running(seed),
        patch.object(local, "open_database", simulation.disk.open),
        patch.object(local, "WriteBatch", SimulatedBatch),
        threads_of(world),
        (mutant or Mutant()).applied(),
    ):
        try:
            simulation.run()
        except (ViolationError, StuckError) as error:
            wrong = str(error)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        finally:
            strikes = sum("kill" in line or "asleep" in line for line in world.log)
            simulation.end()
    return Story(seed, wrong, world.log, len(simulation.checks.commits), strikes, embedded)
