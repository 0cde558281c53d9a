"""The embedded broker in a process of a simulated world, and drivers of a job in others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import headrace.broker.server
import headrace.broker.snapshots
import headrace.spark.driver
import headrace.spark.job
import headrace.spark.source
import headrace.store.replication.copyist
import headrace.store.store
from headrace.broker import BrokerServer, BrokerSettings
from headrace.broker.core import Core
from headrace.broker.waiting import Queue
from headrace.errors import (
    BrokerStorageError,
    FencedError,
    HeadraceError,
    PartitionCountError,
)
from headrace.runtime.commit.journal.lease import LeaseTimes
from headrace.runtime.job_plan import JobPlan
from headrace.settings import JobSettings
from headrace.spark import StreamJob
from headrace.store import StoreSettings
from headrace.topology import Topology
from tests.simulation.disk import SimulatedFiles
from tests.simulation.network import Network
from tests.simulation.spark import SimulatedSession, TaskNumbers
from tests.simulation.threads import sleep
from tests.simulation.world import Process, ViolationError, World, this_thread

PORT = 9876
HOST = "10.0.0.1"

#: What brokers of RocketMQ have instead of a minute.
_LEASE = timedelta(seconds=6)

StandBy = Callable[[StreamJob, Process], None]


class EmbeddedCluster:
    """Headrace's own broker: one process after the other, over one disk.

    Parameters
    ----------
    world
        Where it stands.
    network
        How it is reached.
    folder
        For its files.
    settings
        How it behaves.
    machine, port
        Where it runs.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        folder: Path,
        settings: BrokerSettings,
        machine: str = "broker",
        port: int = PORT,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.files = SimulatedFiles(world, folder)
        self.machine = machine
        self.port = port
        #: Of processes that are started from now on.
        self.settings = settings
        #: Whether its machine is off: nothing is started there.
        self.is_off = False
        self._world = world
        self._network = network
        self.folder = folder
        self.index_file_units = 16
        self._numbers = itertools.count(1)
        self._server: BrokerServer | None = None
        self.process: Process | None = None
        #: Called when messages have become visible.
        self.on_arrival: Callable[[], None] = lambda: None
        #: Called in a process of it before it opens its store.
        self.before_start: Callable[[], None] = lambda: None
        #: Called before a topic is deleted.
        self.on_delete: Callable[[], None] = lambda: None

    @property
    def address(self) -> str:
        """``host:port`` as clients are told it."""
        return f"{HOST}:{self.port}"

    @property
    def core(self) -> Core | None:
        """What the process works on; None while it is not open."""
        server = self._server
        if server is None or (server._reopening is not None and not server._reopening.done()):
            return None
        return server._core

    def start(self) -> None:
        """Start a process of it, where none is."""
        if self.is_off or (self.process is not None and not self.process.dead):
            return
        self.process = self._world.process(f"{self.machine}.{next(self._numbers)}", self.machine)
        self._world.tell(f"{self.process.name} starts")
        self.process.on_death.append(self._died)
        self._world.start(self.process, self._serve)

    def _died(self) -> None:
        self._server = None

    def crash(self, seconds: float, *, power: bool = False) -> None:
        """Kill it, cut its power in addition, and start it again some time later."""
        if self.process is None or self.process.dead:
            return
        self.process.kill()
        if power:
            self._world.tell("power is cut")
            self.files.cut_power()
        self._world.after(seconds, self.start)

    def restart_failed(self) -> None:
        """Start a process anew whose log says that only a start knows what is on the disk."""
        has_failed = self._server is not None and self._server._failure is not None
        if has_failed or (self.core is not None and self.core.store._writer.failure is not None):
            self.crash(0.1)

    def _serve(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            self.before_start()
            loop.run_until_complete(self._run())
        except (HeadraceError, OSError) as error:
            # Whoever started it starts it again; a disk may have been full for a moment.
            self._world.tell(f"the broker did not start: {error!r}")
            self._world.after(0.5, self.start)
            if self.process is not None:
                self.process.kill()

    async def _run(self) -> None:
        server = BrokerServer(self.folder, self.port, self.settings)
        start = server.start

        async def open_it() -> None:
            await start()
            self._opened(server)

        # A follower starts again by itself when its log was cut.
        server.start = open_it  # type: ignore[method-assign]
        await server.start()
        await asyncio.Event().wait()

    def _opened(self, server: BrokerServer) -> None:
        self._server, core = server, server._core
        assert core is not None
        arrived, delete = core.arrived, core.delete_topic

        def tell(queues: Collection[Queue]) -> None:
            arrived(queues)
            self.on_arrival()

        async def delete_topic(name: str) -> bool:
            self.on_delete()
            return await delete(name)

        core.arrived = tell  # type: ignore[method-assign]
        core.delete_topic = delete_topic  # type: ignore[method-assign]
        self._world.tell(f"the {self.machine} is open")
        self.on_arrival()

    def _quick_store(self, **given: Any) -> StoreSettings:
        """Have a store do in a second what it does now and then."""
        expires = given["retention"] < timedelta(minutes=1)
        return StoreSettings(
            **given,
            checkpoint_interval=timedelta(seconds=0.5),
            checkpoint_bytes=4 << 10,
            maintenance_interval=timedelta(seconds=0.5 if expires else 3),
            index_file_units=self.index_file_units,
        )

    @contextmanager
    def applied(self, *others: EmbeddedCluster) -> Iterator[None]:
        """Have brokers listen here, each at its port, and keep their files on their disks."""
        network, disks = self._network, {each.machine: each.files for each in (self, *others)}

        class Port:
            def __init__(self, bound: Any, make: Callable[[], Any], _: object) -> None:
                self._port: int = bound.getsockname()[1]
                self._make = make
                self._loop: Any = asyncio.get_running_loop()

            def start(self) -> None:
                network.listen(self._port, self._loop, self._make)

            def close(self) -> None:
                network.close(self._port, self._loop)

            def left(self, host: str) -> None:
                """Do nothing."""

        def bind(server: BrokerServer) -> SimpleNamespace:
            place = HOST, server._port
            return SimpleNamespace(getsockname=lambda: place, close=lambda: None)

        def files() -> SimulatedFiles:
            me = this_thread()
            assert me is not None
            return disks[me.process.machine]

        with ExitStack() as stack:
            for place, name, instead in (
                (headrace.broker.server, "Listener", Port),
                (BrokerServer, "_listen", bind),
                (BrokerServer, "_advertised", lambda _, bound: bound.getsockname()),
                (headrace.broker.server, "StoreSettings", self._quick_store),
                (headrace.store.store, "FileOps", files),
                (headrace.store.replication.copyist, "FileOps", files),
                (headrace.broker.snapshots, "FileOps", files),
            ):
                stack.enter_context(patch.object(place, name, instead))
            yield


class Drivers:
    """Drivers of one job, each in a process with a Spark of its own.

    Parameters
    ----------
    world, numbers
        Where they run, and the numbers of their attempts at tasks.
    topology, settings
        The job.
    """

    def __init__(
        self, world: World, numbers: TaskNumbers, topology: Topology, settings: JobSettings
    ) -> None:
        self._world = world
        self._numbers = numbers
        self._topology = topology
        #: Of those that are started from now on.
        self.settings = settings
        self._sessions: dict[Process, SimulatedSession] = {}
        self._names = itertools.count(1)
        self.processes: list[Process] = []
        #: Where they and their workers run.
        self.machines: tuple[str, ...] = ("machine-0", "machine-1")
        #: How often their Sparks lose what tasks have made.
        self.losses = 0.03
        #: None is started again before this time.
        self.away_until = 0.0
        #: Tells whether one may end by an error that no further try would mend.
        self.forgives: Callable[[HeadraceError], bool] = lambda error: isinstance(
            error, BrokerStorageError
        )
        #: What ended one of them that should not have.
        self.failure: ViolationError | None = None

    @property
    def alive(self) -> list[Process]:
        """Processes of drivers that have not ended."""
        return [each for each in self.processes if not each.dead]

    def start(self, stand_by: StandBy = lambda *_: None) -> Process:
        """Start one, with as many partitions as the one before has found.

        It may have to stand by before it starts the job.
        """
        machine = self._world.chance.choice(self.machines)
        process = self._world.process(f"driver{next(self._names)}", machine)
        self.processes.append(process)
        self._world.start(process, lambda: self._drive(process, stand_by))
        return process

    def start_another(self) -> None:
        """Start one beside those that are there, unless all are to be away."""
        if self._world.now >= self.away_until:
            self.start()

    def session(self, process: Process) -> SimulatedSession | None:
        """Give the Spark of a driver."""
        return self._sessions.get(process)

    def _drive(self, process: Process, stand_by: StandBy) -> None:
        world = self._world
        job = StreamJob(self._topology, self.settings)
        try:
            stand_by(job, process)
            job.start()
            world.tell(f"{process.name} has started the job")
            job.await_termination()
        except FencedError as error:
            world.tell(f"{process.name} ends: {error.message[:90]}")
        except HeadraceError as error:
            world.tell(f"{process.name} ends: {error!r}")
            for part in error.parts or (error,):
                if isinstance(part, PartitionCountError):
                    # As its hint says; what else there is will be told again.
                    partitions = int(part.message.split(" partitions")[0].split()[-1])
                    self.settings = replace(self.settings, partitions=partitions)
                    break
            else:
                if not error.retriable and not self.forgives(error):
                    self.failure = ViolationError(
                        f"{process.name} ends: {type(error).__name__}: {error.message}"
                    )
        finally:
            process.kill()
            # Files that generators have open are closed here, and not at some later time.
            with suppress(BaseException):
                job._opened.close()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have drivers run on simulated Sparks."""

        def process() -> Process:
            me = this_thread()
            assert me is not None
            return me.process

        def get_session(*_: object) -> SimulatedSession:
            mine = process()
            found = self._sessions.get(mine)
            if found is None or found.java.dead:
                sleep(self._world, 0.3)
                machines = [mine.machine, self._world.chance.choice(self.machines)]
                found = SimulatedSession(self._world, mine, machines, self._numbers)
                found.losses = self.losses
                self._sessions[mine] = found
            return found

        def forget() -> bool:
            found = self._sessions.get(process())
            return found is not None and found.java.dead

        def state_root(plan: JobPlan) -> Path:
            return Path(plan.settings.local_state) / process().machine / plan.job

        with ExitStack() as stack:
            for place, name, instead in (
                (headrace.spark.driver, "get_session", get_session),
                (headrace.spark.job, "get_session", get_session),
                (headrace.spark.driver, "end_session", lambda _: None),
                (headrace.spark.driver, "forget_dead_session", forget),
                (headrace.spark.driver, "checkpoint_folder", lambda: nullcontext("")),
                (headrace.spark.source, "session_is_ours", lambda: True),
                (headrace.spark.source, "col", str),
                (JobPlan, "state_root", property(state_root)),
                # Of whoever is no driver, and so has no settings.
                (LeaseTimes.__init__, "__defaults__", (_LEASE.total_seconds(),)),
            ):
                stack.enter_context(patch.object(place, name, instead))
            yield


def job_settings(folder: Path, **more: Any) -> JobSettings:
    """Give settings of a job that waits for less long than usual."""
    return replace(
        JobSettings(
            namesrv=f"{HOST}:{PORT}",
            data_dir=folder,
            request_timeout=timedelta(seconds=0.5),
            retry_timeout=timedelta(seconds=5),
            connect_timeout=timedelta(seconds=1),
            lease_expiry=_LEASE,
            commit_interval=timedelta(0),
        ),
        **more,
    )
