"""One seed: a job from its first record to its last, whatever happens on the way."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import headrace.spark.job
from headrace.broker import BrokerSettings
from headrace.client import Admin, Client, ClientSettings, Message, Producer, SendResult
from headrace.errors import HeadraceError
from headrace.settings import Executor
from headrace.store.compaction import CompactionSettings
from tests.simulation.checks import Checks
from tests.simulation.cluster import HOST, PORT, Drivers, EmbeddedCluster, job_settings
from tests.simulation.cuts import Cuts
from tests.simulation.damage import Caretaker
from tests.simulation.disk import CopyWatch
from tests.simulation.gangs import gangs_of
from tests.simulation.job import COUNTS, JOB, JOBS, KEYS, LAST, LINES, QUEUES, RESULTS
from tests.simulation.journal_checks import JournalChecks
from tests.simulation.mutants import Mutant
from tests.simulation.neighbours import Neighbours
from tests.simulation.network import Network
from tests.simulation.operator import Operator
from tests.simulation.processes import processes_of, variables
from tests.simulation.replicas import ADDRESSES, Replicas
from tests.simulation.retention import UNDER_WAY, Losses
from tests.simulation.rocketmq import LOCK_EXPIRY, RocketMQCluster
from tests.simulation.standbys import Standbys
from tests.simulation.strikes import Machines, Strikes
from tests.simulation.swarm import has
from tests.simulation.threads import persist, sleep
from tests.simulation.tools import Tools
from tests.simulation.world import StuckError, ViolationError, World, on_one_core

#: By when all must be done, s.
_END = 60.0
#: One seed on RocketMQ of so many ends with a compaction and drivers without copies of state.
_ANEW = 4
_USER = ClientSettings(
    request_timeout=timedelta(seconds=0.5),
    connect_timeout=timedelta(seconds=20),
    retry_timeout=timedelta(seconds=20),
)
_NEIGHBOUR = replace(
    _USER,
    heartbeat_interval=timedelta(seconds=2),
    rebalance_interval=timedelta(seconds=0.5),
    commit_interval=timedelta(seconds=0.5),
    lock_interval=timedelta(seconds=0.2),
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
    executor: Executor = "micro-batch"

    def __str__(self) -> str:
        told = "\n".join(self.log[-120:])
        where = "" if self.embedded else " --rocketmq"
        where += " --resident" if self.executor == "resident" else ""
        again = f"python -m tests.simulation --seed {self.seed}{where}"
        return f"{told}\n  => {self.wrong}\nagain: {again}"


class Simulation:
    """A cluster, its drivers, and what strikes them."""

    def __init__(self, world: World, mutant: Mutant, *, embedded: bool, executor: Executor) -> None:
        self.world = world
        self._chance = world.chance
        self._mutant = mutant
        self._embedded = embedded
        self._executor = executor
        self.checks: Checks | JournalChecks
        #: What runs: in half of all seeds the job of which most is checked.
        self._job = JOBS[0 if world.seed % 2 else world.seed // 2 % len(JOBS)]
        self._stacks = ""
        self._sent = False
        #: What is lost of the source topics, in some seeds.
        self._losses: Losses | None = None
        self._standbys: Standbys | None = None
        self._neighbours: Neighbours | None = None
        self._caretaker: Caretaker | None = None
        self._tools: Tools | None = None
        #: The broker and its follower, in some seeds.
        self._replicas: Replicas | None = None
        self._address = f"{HOST}:{PORT}"
        #: Lines that a broker has answered with success.
        self._acknowledged: list[str] = []

    def run(self, folder: Path) -> None:
        """Run until everything is committed.

        Raises
        ------
        ViolationError
            Something was lost, doubled, made up, or never came.
        """
        world, chance = self.world, self._chance
        with ExitStack() as stack:
            points, databases, numbers = stack.enter_context(processes_of(world))
            stack.enter_context(self._mutant.applied())
            self._copies = CopyWatch(lambda: self.checks.commits)
            stack.enter_context(self._copies.applied())
            network = Network(world)
            age = chance.uniform(0.5, 2.5) if has(world.seed, "retention") else None
            self.cluster: EmbeddedCluster | RocketMQCluster
            if self._embedded:
                settings = BrokerSettings(
                    lock_expiry=timedelta(seconds=LOCK_EXPIRY),
                    save_interval=timedelta(seconds=2),
                    segment_size=chance.choice(
                        (256, 1 << 10, 2 << 10) if age else (2 << 10, 16 << 10, 256 << 20)
                    ),
                    retention=timedelta(seconds=age) if age else timedelta(hours=72),
                    compaction=CompactionSettings(
                        file_size=chance.choice((2 << 10, 128 << 20)), dirty_ratio=0.1
                    ),
                    transaction_timeout=timedelta(seconds=1),
                    transaction_check_interval=timedelta(seconds=1),
                )
                self.cluster = EmbeddedCluster(world, network, folder / "broker", settings)
                brokers = self._brokers(network, self.cluster, folder / "broker-b")
                stack.enter_context(self.cluster.applied(*brokers))
                self.checks = Checks(self._job)
                self.cluster.on_delete = self._look
                self.cluster.start()
            else:
                self.cluster = RocketMQCluster(world, network, chance.choice((1, 1, 2, 3)))
                self.checks = JournalChecks(self.cluster.brokers, self._job)
            partitions = chance.choice(self._job.partitions)
            job = job_settings(
                folder / "job",
                partitions=partitions,
                max_records_per_batch=chance.choice((1, 2, 3, 5)),
                namesrv=self._address,
                executor=self._executor,
            )
            stack.enter_context(gangs_of(world))
            self._drivers = Drivers(world, numbers, self._job.topology, job)
            stack.enter_context(self._drivers.applied())
            self._drivers.losses = self._job.losses
            if age or has(world.seed, "topics made anew"):
                self._losses = Losses(world, self.checks.sources, self._drivers)
                self._losses.look = self._look_at_bounds
                stack.enter_context(self._losses.applied())
            if age and self._losses is not None:
                stock = self.cluster if isinstance(self.cluster, RocketMQCluster) else None
                self._losses.begin(age, stock)
            if isinstance(self.cluster, EmbeddedCluster) and self._replicas is None:
                self._add_others(self.cluster)
            if has(world.seed, "standby"):
                self._standbys = Standbys(
                    world, self.cluster, network, self._drivers, lambda: self._operator.is_busy
                )
                stack.enter_context(self._standbys.applied(vars(headrace.spark.job)["get_session"]))
            world.haste = chance.choice((20, 100, 300))
            self._failure: ViolationError | None = None
            (self._replicas or self.cluster).on_arrival = self._look_soon
            world.start(world.process("user", "apart"), self._use)
            self._checker = world.process("checker", "apart")
            self._operator = Operator(
                world.process("operator", "apart"),
                self._drivers,
                lambda: Client(self._address, _USER),
                sorted(self._job.topology.state_topics),
            )
            self._operator.plan(carries=self._replicas is None)
            machines = Machines(databases, Path(job.local_state))
            self.strikes = Strikes(
                world, self.cluster, network, self._drivers, machines, self._operator
            )
            self.strikes.plan(points)
            if self._replicas is not None:
                self._replicas.plan(points, self._drivers)
            if has(world.seed, "job begun anew"):
                self.strikes.plan_moves(points)
            if has(world.seed, "cuts"):
                Cuts(world, network, self.cluster, self._drivers, forgets=self._may_forget)
            world.run(lambda: self._has_failed() or self._is_done() or world.now > _END)
            self._finish()
            if isinstance(self.checks, JournalChecks) and world.seed % _ANEW == 1:
                self._begin_anew(self.checks)
            if self._caretaker is not None:
                self._operator.dismiss()
                self._caretaker.break_log()

    def _add_others(self, broker: EmbeddedCluster) -> None:
        """Let others use the broker beside the job, and look after its store, in some seeds."""
        world = self.world
        if has(world.seed, "damage"):
            self._caretaker = Caretaker(world, broker, self._drivers)
            broker.before_start = self._look_after_store
        if has(world.seed, "neighbours"):
            self._neighbours = Neighbours(world, lambda: Client(f"{HOST}:{PORT}", _NEIGHBOUR))
            self._neighbours.plan()

    def _brokers(
        self, network: Network, first: EmbeddedCluster, folder: Path
    ) -> Sequence[EmbeddedCluster]:
        """Give all brokers there are: the first may have a follower, or a name server."""
        seed = self.world.seed
        # What nobody looks at before it goes is not known here.
        loses = has(seed, "retention") or has(seed, "topics made anew")
        if has(seed, "tools") and not has(seed, "follower"):
            self._tools = Tools(self.world, network, first, folder, _USER)
            self._tools.plan()
            return first, self._tools.names
        if loses or not has(seed, "follower"):
            return (first,)
        self._replicas = Replicas(self.world, network, first, folder)
        self._address = ADDRESSES
        return self._replicas.brokers

    def _finish(self) -> None:
        """Let what is under way arrive, which must change nothing, and everything be committed."""
        world = self.world
        self.strikes.calm()
        until = world.now + 1.0
        end = max(_END, world.now + _END / 2)
        world.run(lambda: self._has_failed() or world.now > until)
        world.run(lambda: self._has_failed() or self._is_done() or world.now > end)
        if not self._has_failed() and not self._is_done():
            self._stacks = world.stacks()
            wrong = self.checks.disagreement() or "not all is committed"
            if self.checks.is_done():
                wrong = next((each.disagreement() for each in self._others()), wrong)
            raise ViolationError(f"after {end:.0f} s: {wrong}")
        if isinstance(self.checks, JournalChecks):
            self.checks.finish()
        if self._replicas is not None:
            self._compare(self._replicas)
        if self._failure is not None:
            raise self._failure

    def _compare(self, replicas: Replicas) -> None:
        """Check that nothing is lost that was answered, and that both brokers have the same."""
        lines = [line for line in self._acknowledged if not self.checks.sources.has(line)]
        if lines:
            raise ViolationError(f"{lines} were acknowledged, and are lost")
        if (wrong := replicas.difference()) is not None:
            raise ViolationError(wrong)

    def _begin_anew(self, checks: JournalChecks) -> None:
        """Compact the job's own topics, and let a driver without copies go on from them.

        Before that a message of state arrives that was held up since the first batch.
        """
        world, cluster = self.world, self.cluster
        assert isinstance(cluster, RocketMQCluster)
        cluster.send_late(self._job.topology.state_topics.values())
        for machine in ("machine-new", "machine-compacted"):
            for driver in self._drivers.alive:
                driver.kill()
            if machine == "machine-compacted":
                checks.look()
                if checks.hidden():
                    raise ViolationError(f"compaction would lose {checks.hidden()} keys of state")
                cluster.compact()
            self._drivers.machines = (machine,)
            self._sent = False
            world.start(world.process("user", "apart"), self._send_one)
            self._finish()

    def _may_forget(self) -> bool:
        """Tell whether a name server may forget a broker.

        Whoever ends windows must know all queues.  And while a job starts for the first time, two
        drivers may then make two commit topics.
        """
        checks = self.checks
        return checks.sources.has_begun and not checks.expects.only_at_end

    def _send_one(self) -> None:
        with Client(self._address, _USER) as client:
            message = Message(topic=LINES, body=b"a-99")
            self._persist(partial(Producer(client).send, message))
        self._sent = True

    def _has_failed(self) -> bool:
        watched = (
            self._drivers,
            self._operator,
            self._copies,
            self._losses,
            self._standbys,
            *self._others(),
        )
        failures = (each.failure for each in watched if each is not None)
        self._failure = self._failure or next(filter(None, failures), None)
        return self._failure is not None

    def _is_done(self) -> bool:
        are_done = all(each.are_done() for each in self._others())
        return self._sent and self.checks.is_done() and are_done

    def _others(self) -> list[Neighbours | Tools]:
        """Give those who use the broker beside the job."""
        return [each for each in (self._neighbours, self._tools) if each is not None]

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

    def _look_after_store(self) -> None:
        assert self._caretaker is not None
        try:
            self._caretaker.before_start()
        except ViolationError as error:
            self._failure = error

    def _look_at_bounds(self) -> None:
        if isinstance(self.checks, JournalChecks):
            self.checks.look_at_sources()
        elif isinstance(self.cluster, EmbeddedCluster) and self.cluster.core is not None:
            self.checks.look_at_bounds(self.cluster.core)

    def _look(self) -> None:
        assert isinstance(self.cluster, EmbeddedCluster)
        assert isinstance(self.checks, Checks)
        world, replicas = self.world, self._replicas
        if self._has_failed():
            return
        try:
            with world.in_one_moment():
                core = self.cluster.core if replicas is None else replicas.core()
                if core is not None:
                    self.checks.look(core)
                    if self._neighbours is not None:
                        self._neighbours.look(core)
        except ViolationError as error:
            self._failure = error

    # Records

    def _use(self) -> None:
        """Make the topics, and send lines, as somebody does who has nothing to do with the job."""
        chance = random.Random(f"{self.world.seed} lines")
        with Client(self._address, _USER) as client:
            admin = Admin(client)
            retries = () if self._embedded else (f"%RETRY%{JOB}",)
            for topic in (*self._job.inputs, RESULTS, COUNTS, *retries):
                self._persist(partial(admin.create_topic, topic, queues=QUEUES))
            self._drivers.start()
            self.world.after(0.5, self._keep)
            if self._standbys is not None:
                self.world.after(0.6, self._standbys.keep)
            producer = Producer(client)
            begins_anew = -1
            count = chance.randint(5, 20)
            if has(self.world.seed, "job begun anew"):
                count += 10
                begins_anew = chance.randrange(5, count - 5)
            anew: list[int] = []
            if has(self.world.seed, "topics made anew"):
                anew = chance.sample(range(1, count), chance.choice((1, 1, 2)))
            for number in range(count):
                if number in anew and self._losses is not None:
                    self._losses.make_anew(self._persist, admin)
                if number == begins_anew and isinstance(self.checks, Checks) and not self._replicas:
                    self._delete_job(self.checks, admin)
                topic = chance.choice(self._job.inputs)
                line = f"{chance.choice(KEYS)}-{number}"
                message = Message(topic=topic, body=line.encode())
                self._persist(partial(self._send, partial(producer.send, message)))
                self._acknowledged.append(line)
                sleep(self.world, chance.choice((0.0, 0.0, 0.05, 0.3, 0.8)))
            if self.checks.expects.only_at_end:
                # What is held up must not come too late for its window.
                sleep(self.world, 5.0)
                for topic in self._job.inputs:
                    for queue in client.queues(topic, for_="write"):
                        message = Message(topic=topic, body=LAST.encode())
                        self._persist(partial(self._send, partial(producer.send, message, queue)))
        self._sent = True

    def _send(self, send: Callable[[], SendResult]) -> None:
        """Send something, again where only the primary has it."""
        while send().status:
            self.world.tell("only the primary has what the user has sent")
            sleep(self.world, 0.2)

    def _delete_job(self, checks: Checks, admin: Admin) -> None:
        """Delete what says where the job stands: the next driver begins anew, beside old copies."""
        world, drivers, operator = self.world, self._drivers, self._operator
        while operator.is_here or not checks.commits:
            sleep(world, 0.1)
        operator.is_here, drivers.away_until = True, 1e9
        for driver in drivers.alive:
            driver.kill()
        sleep(world, UNDER_WAY)
        topology = self._job.topology
        for topic in (topology.commit_topic, *sorted(topology.state_topics.values())):
            self._persist(partial(admin.delete_topic, topic))
        # A request that was held up may delete them once more.
        sleep(world, UNDER_WAY)
        world.tell("the job begins anew")
        checks.begin_anew()
        operator.is_here, drivers.away_until = False, 0.0

    def _persist(self, run: Callable[[], object]) -> None:
        """Try something until it is done; what is sent may be there twice."""
        persist(self.world, "the user", run)

    def _keep(self) -> None:
        """Start a driver where there is none, as a supervisor does."""
        away = self._operator.is_busy or self.world.now < self._drivers.away_until
        if not self._drivers.alive and not away:
            self._drivers.start()
        if isinstance(self.cluster, EmbeddedCluster):
            self.cluster.restart_failed()
        if self._replicas is not None:
            self._replicas.restart_failed()
        self.world.after(0.2, self._keep)


_warm: list[bool] = []


def what_is_wrong(run: Callable[[Path], None], folder: Path) -> str | None:
    """Run a simulation in a folder that is emptied before, and say what it has found."""
    shutil.rmtree(folder, ignore_errors=True)
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    logging.disable(logging.CRITICAL)
    try:
        # What a process that is killed leaves there goes with the seed.
        with patch.object(tempfile, "tempdir", str(temporary)), on_one_core():
            run(folder)
    except (ViolationError, StuckError) as error:
        return str(error)
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        logging.disable(logging.NOTSET)
    return None


def simulate(
    seed: int,
    folder: Path,
    mutant: Mutant | None = None,
    *,
    embedded: bool = True,
    executor: Executor = "micro-batch",
) -> Story:
    """Run a seed, and tell what became of it."""
    if not _warm:
        # What is loaded when it is first used makes a difference.
        _warm.append(True)
        simulate(0, folder)
        # Each seed ends with a look for garbage, which need not go through all that is loaded.
        gc.freeze()
    world = World(seed, variables(lambda: world))
    simulation = Simulation(world, mutant or Mutant(), embedded=embedded, executor=executor)
    wrong = what_is_wrong(simulation.run, folder)
    if os.environ.get("STACKS"):
        world.log += simulation._stacks.splitlines()
    batches = len(simulation.checks.commits)
    struck = simulation.strikes.count
    if simulation._replicas is not None:
        struck += simulation._replicas.count
    return Story(seed, wrong, world.log, batches, struck, world.turns, embedded, executor)


__all__ = ["Simulation", "Story", "simulate", "what_is_wrong"]
