"""One seed of Connect: workers with a source and a sink, whatever happens on the way."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from headrace.broker import BrokerSettings
from headrace.client import AsyncClient, ClientSettings
from headrace.connect.data import DataPlane
from headrace.connect.hosts import HostSettings, ProcessLauncher
from headrace.connect.lifecycle import Target
from headrace.connect.running import joined_cluster, running_worker
from headrace.connect.worker import Connect, OffsetEntry, WorkerSettings
from headrace.errors import ConnectorExistsError, HeadraceError
from headrace.settings import JobSettings
from headrace.store.compaction import CompactionSettings
from tests.simulation.cluster import HOST, PORT, Drivers, EmbeddedCluster, job_settings
from tests.simulation.connect_checks import SINK, SOURCE, TOPIC, ConnectChecks
from tests.simulation.hosts import Machinery, connect_variables
from tests.simulation.job import JOBS
from tests.simulation.mutants import Mutant
from tests.simulation.network import Network, Trouble
from tests.simulation.outside import LINES_SOURCE, STORE_SINK, Outside
from tests.simulation.processes import processes_of, variables
from tests.simulation.simulation import Story, what_is_wrong
from tests.simulation.threads import sleep
from tests.simulation.world import Process, ViolationError, World

__all__ = ["ConnectSimulation", "ConnectStory", "simulate_connect"]

_RATES = (0, 5, 20, 60)
_HELD_UP = (0, 0, 60, 200)
#: From when on nothing strikes any more, and by when all must be done, s.
_CALM, _END = 14.0, 90.0
_NAMESRV = f"{HOST}:{PORT}"
#: Who asks a worker for something waits for so long, s.
_PATIENCE = 6.0
_LOGS = ("a", "b", "c", "d")


class ConnectStory(Story):
    """What became of a seed of Connect."""

    def __str__(self) -> str:
        return f"{super().__str__()} --connect"


class _Network(Network):
    """A network that holds up, in some seeds, much of what workers themselves send.

    Who sent it asks again by another connection, so it comes twice, once of them late.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._words = random.Random(f"{world.seed} words")
        #: Writes of a thousand by workers that are held up.
        self.held_up = _HELD_UP[world.seed % len(_HELD_UP)]

    def choose(self, process: Process) -> Trouble:
        is_worker = process.kind == "worker" and ".engine" not in process.name
        if is_worker and self.held_up and self._words.randrange(1000) < self.held_up:
            return "held up"
        return super().choose(process)


class ConnectSimulation:
    """Brokers, workers with what they run, and what strikes them."""

    def __init__(self, world: World, mutant: Mutant) -> None:
        self.world = world
        self._chance = world.chance
        self._mutant = mutant
        self.outside = Outside.here = Outside(world)
        self.checks = ConnectChecks(self.outside)
        self.strikes = 0
        #: Workers that run, by the process that each is.
        self.connects: dict[Process, tuple[Any, Connect]] = {}
        self.workers: dict[str, Process] = {}
        self._failure: ViolationError | None = None
        self._lives = itertools.count(1)
        #: Whether all lines are written and all that is asked of workers is done.
        self._told = False
        self._written_by = 0.0

    def run(self, folder: Path) -> None:
        """Run until every line is in the store.

        Raises
        ------
        ViolationError
            Something was lost, doubled, made up, or never came.
        """
        world, chance = self.world, self._chance
        with ExitStack() as stack:
            points, _, numbers = stack.enter_context(processes_of(world))
            stack.enter_context(self._mutant.applied())
            network = self._network = _Network(world)
            network.trouble = chance.choice(_RATES)
            settings = BrokerSettings(
                save_interval=timedelta(seconds=2),
                segment_size=chance.choice((16 << 10, 256 << 20)),
                compaction=CompactionSettings(
                    file_size=chance.choice((2 << 10, 128 << 20)), dirty_ratio=0.1
                ),
            )
            self.cluster = EmbeddedCluster(world, network, folder / "broker", settings)
            stack.enter_context(self.cluster.applied())
            self._jobs = job_settings(folder / "jobs")
            self._folder = folder
            # Only their Sparks are used: whose drivers run there is the engines' business.
            self._drivers = Drivers(world, numbers, JOBS[0].topology, self._jobs)
            stack.enter_context(self._drivers.applied())
            self.machinery = Machinery(world)
            stack.enter_context(self.machinery.applied())
            world.haste = chance.choice((10, 50, 200))
            self.cluster.on_arrival = self._look_soon
            self.cluster.start()
            self._checker = world.process("checker", "apart")
            for number in range(chance.choice((1, 1, 2))):
                self._start_worker(f"w{number}")
            self._write_lines()
            world.start(world.process("user", "apart"), self._use)
            world.after(0.5, self._keep)
            self._plan_strikes(points.strikes)
            world.run(lambda: self._has_failed() or self._is_done() or world.now > _END)
            until = world.now + 1.0
            world.run(lambda: self._has_failed() or world.now > until)
            if self._failure is not None:
                raise self._failure
            if not self._is_done():
                lack = self.checks.lacks()
                raise ViolationError(f"not all is committed after {world.now:.0f} s: {lack}")

    def _has_failed(self) -> bool:
        self._failure = self._failure or self.outside.failure
        return self._failure is not None

    def _is_done(self) -> bool:
        return self._told and self.checks.is_done()

    def _look_soon(self) -> None:
        self.world.start(self._checker, self._look)

    def _look(self) -> None:
        world, core = self.world, self.cluster.core
        if core is None or self._has_failed():
            return
        try:
            with world.in_one_moment():
                self.checks.look(core)
        except ViolationError as error:
            self._failure = error

    # Workers

    def _start_worker(self, name: str) -> None:
        process = self.world.process(f"{name}.worker.{next(self._lives)}", f"machine-{name}")
        self.workers[name] = process
        self.world.start(process, lambda: self._work(process, name))

    def _work(self, process: Process, name: str) -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._run_worker(process, name))
        except (HeadraceError, OSError, TimeoutError) as error:
            self.world.tell(f"{process.name} ends: {error!r}")
        finally:
            process.kill()

    async def _run_worker(self, process: Process, name: str) -> None:
        settings = WorkerSettings(
            worker_id=name,
            data=self._folder / name,
            group="group",
            heartbeat_interval=timedelta(seconds=0.4),
            session_timeout=timedelta(seconds=2),
            fence_after=timedelta(seconds=1.5),
            rebalance_delay=timedelta(seconds=3),
            graceful_timeout=timedelta(seconds=2),
            cancel_timeout=timedelta(seconds=1),
            kill_timeout=timedelta(seconds=1),
        )
        ahead = self._chance.choice((2, 4, 50))
        hosts = HostSettings(probe_interval=0.0, outside_interval=0.0, ahead_records=ahead)
        jobs: JobSettings = self._jobs
        async with (
            ProcessLauncher(settings.data / "hosts", hosts) as launcher,
            DataPlane(launcher, _NAMESRV, settings.data / "engine", jobs=jobs) as plane,
            AsyncClient(_NAMESRV, ClientSettings(**jobs.connection)) as client,
            joined_cluster(client, settings) as cluster,
            running_worker(settings, plane, cluster, positions=plane) as running,
        ):
            self.world.tell(f"{process.name} runs")
            self.connects[process] = asyncio.get_running_loop(), running.connect
            await running.until_asked()

    def _keep(self) -> None:
        """Start workers that have ended, as a supervisor does."""
        for name, process in self.workers.items():
            if process.dead:
                self.connects.pop(process, None)
                self._start_worker(name)
        self.cluster.restart_failed()
        self.world.after(0.3, self._keep)

    # What is written outside

    def _write_lines(self) -> None:
        chance = random.Random(f"{self.world.seed} lines")
        for log in _LOGS[: chance.choice((1, 2, 3, 4))]:
            at = chance.choice((0.0, 0.0, chance.uniform(0.0, 6.0)))
            parts, closes = chance.randint(1, 4), chance.random() < 0.4
            for part in range(parts):
                count, last = chance.randint(1, 5), closes and part == parts - 1
                self.world.at(at, partial(self.outside.write, log, count, last=last))
                at += chance.choice((0.0, 0.3, 1.0, 3.0))
            self._written_by = max(self._written_by, at)

    # What is asked of workers

    def _use(self) -> None:
        """Make the connectors, and change what they do, as somebody does over REST."""
        chance = random.Random(f"{self.world.seed} user")
        tasks = str(chance.choice((1, 2, 3)))
        restarts = {"restart.max.attempts": "-1", "restart.pause.ms": "200"}
        restarts["restart.pause.max.ms"] = "1000"
        self._create(
            SOURCE,
            {
                "connector.class": LINES_SOURCE,
                "tasks.max": tasks,
                "topic": TOPIC,
                "topic.creation.default.partitions": "2",
                **restarts,
            },
        )
        self._create(
            SINK,
            {
                "connector.class": STORE_SINK,
                "tasks.max": str(chance.choice((1, 2))),
                "topics": TOPIC,
                **restarts,
            },
        )
        for _ in range(chance.choice((0, 1, 1, 2))):
            sleep(self.world, chance.uniform(0.3, 3.0))
            kind = chance.choice((self._alter, self._alter, self._restart, self._pause))
            kind(chance)
        while self.world.now < self._written_by + 0.1:
            sleep(self.world, 0.5)
        self._told = True

    def _create(self, name: str, config: dict[str, str]) -> None:
        async def create(connect: Connect) -> None:
            try:
                await connect.create(name, config)
            except ConnectorExistsError:
                self.world.tell(f"{name} is there")

        self._persist(create)

    def _alter(self, chance: random.Random) -> None:
        """Stop the source, have it go on elsewhere, and resume it."""
        logs = [log for log in self.outside.lines if log not in self.outside.closed]
        self._persist(lambda connect: connect.set_target(SOURCE, Target.STOPPED))
        if logs:
            log = chance.choice(logs)
            share = chance.random()

            async def alter(connect: Connect) -> None:
                known = {one.partition["log"]: one.offset for one in await connect.offsets(SOURCE)}
                at = (known.get(log) or {"n": 0})["n"]
                to = None if share < 0.2 else {"n": int(share * (at + 1))}
                self.world.tell(f"log {log} is at {at} and set to {to}")
                entry = OffsetEntry({"log": log}, to)
                await connect.alter_offsets(SOURCE, [entry])

            self._persist(alter)
        self._persist(lambda connect: connect.set_target(SOURCE, Target.RUNNING))

    def _restart(self, chance: random.Random) -> None:
        name = chance.choice((SOURCE, SINK))

        async def restart(connect: Connect) -> None:
            await connect.restart(name, include_tasks=True)

        self._persist(restart)

    def _pause(self, chance: random.Random) -> None:
        name = chance.choice((SOURCE, SINK))
        self._persist(lambda connect: connect.set_target(name, Target.PAUSED))
        sleep(self.world, chance.uniform(0.0, 2.0))
        self._persist(lambda connect: connect.set_target(name, Target.RUNNING))

    def _persist(self, ask: Callable[[Connect], Awaitable[object]]) -> None:
        """Ask workers for something until one has done it."""
        while True:
            running = [one for process, one in self.connects.items() if not process.dead]
            if running:
                loop, connect = self.world.chance.choice(running)
                try:
                    self._ask(loop, partial(ask, connect))
                except (HeadraceError, TimeoutError) as error:
                    text = str(error).partition("\n")[0]
                    self.world.tell(
                        f"the user tries again after: {type(error).__name__} {text[:90]}"
                    )
                else:
                    return
            sleep(self.world, 0.3)

    def _ask(self, loop: Any, make: Callable[[], Any]) -> None:
        done: Future[object] = Future()

        def begin() -> None:
            task = loop.create_task(make())
            task.add_done_callback(tell)

        def tell(task: asyncio.Task[object]) -> None:
            if task.cancelled():
                done.set_exception(TimeoutError("it was cancelled"))
            elif (error := task.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(None)

        loop.call_soon_threadsafe(begin)
        done.result(_PATIENCE)

    # What strikes

    def _plan_strikes(self, points: dict[tuple[str, int], Callable[[Process], None]]) -> None:
        chance, world = self._chance, self.world
        kinds = (
            self._kill_host,
            self._kill_host,
            self._stop_host,
            self._kill_engine,
            self._stop_engine,
            self._kill_worker,
            self._stop_worker,
            self._stop_machine,
            self._kill_spark,
            self._kill_spark,
            self._crash_broker,
            self._cut_power,
        )
        for _ in range(chance.randint(1, 4)):
            world.at(chance.uniform(0.8, 9.0), chance.choice(kinds))
        if chance.random() < 0.6:
            for _ in range(chance.randint(1, 3)):
                where = chance.choice(("engine", "engine", "worker", "broker"))
                points[where, chance.randint(1, 60)] = self._strike_point
        if chance.random() < 0.2:
            self.cluster.files.trouble = chance.choice((5, 20))
        if chance.random() < 0.3:
            # Tasks begin in any order, one long after the others.
            self.machinery.on_fork = self._stop_new_host
        world.at(_CALM, self._calm)

    def _calm(self) -> None:
        self._network.trouble = self._network.held_up = 0
        self.cluster.files.trouble = 0

    def _stop_new_host(self, host: Process) -> None:
        if self.world.now < _CALM and self._chance.random() < 0.3:
            self.strikes += 1
            host.sleep(self._chance.uniform(1.0, 8.0))

    def _strike_point(self, process: Process) -> None:
        self.strikes += 1
        if process.name.startswith("broker"):
            self._crash(self._chance.uniform(0.05, 1.0), power=self._chance.random() < 0.5)
        elif self._chance.random() < 0.3:
            process.sleep(self._chance.uniform(0.5, 8.0))
        else:
            process.kill()

    def _choose(self, found: list[Process]) -> Process | None:
        alive = [each for each in found if not each.dead]
        if not alive:
            return None
        self.strikes += 1
        return self._chance.choice(alive)

    def _kill(self, found: list[Process]) -> None:
        if (chosen := self._choose(found)) is not None:
            chosen.kill()

    def _stop(self, found: list[Process], seconds: float) -> None:
        """Stop a process with all that is its own."""
        if (chosen := self._choose(found)) is not None:
            for process in self.world.processes:
                if process is chosen or process.name.startswith(f"{chosen.name}."):
                    process.sleep(seconds)

    def _kill_host(self) -> None:
        self._kill(list(self.machinery.hosts))

    def _stop_host(self) -> None:
        self._stop(list(self.machinery.hosts), self._chance.uniform(0.2, 8.0))

    def _kill_engine(self) -> None:
        self._kill(self.machinery.engines)

    def _stop_engine(self) -> None:
        self._stop(self.machinery.engines, self._chance.uniform(0.5, 8.0))

    def _kill_worker(self) -> None:
        self._kill(list(self.workers.values()))

    def _stop_worker(self) -> None:
        """Stop a worker alone: what it has started goes on."""
        if (chosen := self._choose(list(self.workers.values()))) is not None:
            chosen.sleep(self._chance.uniform(0.5, 8.0))

    def _stop_machine(self) -> None:
        self._stop(list(self.workers.values()), self._chance.uniform(0.5, 8.0))

    def _kill_spark(self) -> None:
        """Kill Java, or a worker of it."""
        engines = [each for each in self.machinery.engines if not each.dead]
        sessions = [self._drivers.session(each) for each in engines]
        found = [one for session in sessions if session for one in (session.java, *session.workers)]
        self._kill(found)

    def _crash_broker(self) -> None:
        self.strikes += 1
        self._crash(self._chance.choice((0.2, 1.0, 2.0, 5.0)))

    def _cut_power(self) -> None:
        self.strikes += 1
        self._crash(self._chance.uniform(0.05, 2.0), power=True)

    def _crash(self, seconds: float, *, power: bool = False) -> None:
        self.cluster.crash(seconds, power=power)


_warm: list[bool] = []


def simulate_connect(seed: int, folder: Path, mutant: Mutant | None = None) -> ConnectStory:
    """Run a seed, and tell what became of it."""
    if not _warm:
        # What is loaded when it is first used makes a difference.
        _warm.append(True)
        simulate_connect(0, folder)
        gc.freeze()
    world = World(seed, [*variables(lambda: world), *connect_variables()])
    simulation = ConnectSimulation(world, mutant or Mutant())
    wrong = what_is_wrong(simulation.run, folder)
    commits, strikes = simulation.checks.commits, simulation.strikes
    return ConnectStory(seed, wrong, world.log, commits, strikes, world.turns)
