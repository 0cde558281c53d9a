"""Enumeration of crashes without Spark: a run counts its failpoints, then each is deadly once.

The run is a row of drivers on the proof job's input, which is there from the start: one on an
empty folder, one on a folder of another machine, so that it restores all state, and one on the
folder of the first, whose copies are behind.  Each is a process of its own, forked from one that
has loaded everything, and started again when it dies.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headrace.client import Admin, Client
from headrace.failpoints import ENVIRONMENT_VARIABLE, arm, arm_in_folder, read_hits
from headrace.protocol.transactions import CommitReader, commit_in
from headrace.runtime.commit.drivers import DriverName
from headrace.topology import Topology
from tests.faults.broker import Broker, kept_running, running_broker
from tests.faults.cluster_job import ClusterNames, feed_hours, proof_on_cluster
from tests.faults.local_driver import LocalDriver
from tests.faults.proof_feeder import ProofFeeder, Sent, make_topics
from tests.faults.proof_followers import Follower
from tests.faults.proof_fronts import Checkers
from tests.faults.proof_pipeline import QUEUES, Names, proof
from tests.faults.verification import bodies_by_key
from tests.streams.model.brokers import without_brokers
from tests.without import without

BATCH_SIZE = 60
#: Folder of each driver, and the batch after which it ends; the last one does what is left.
PHASES = (("here", 2), ("there", 3), ("here", None))
_STARTS = 4

#: Every step of a batch, an open and a restore; a driver that misses one misses a place to die.
DRIVERS = {
    "job.after_commit",
    "job.before_commit",
    "job.before_open",
    "job.opened",
    "job.published",
    "plan.planned",
    "plan.split",
    "state.apply.read",
    "state.apply.written",
    "state.catch_up.block",
    "state.changes.begun",
    "state.changes.kept",
    "state.replay.block",
    "state.replay.emptied",
    "task.begun",
    "task.persisted",
    "task.processed",
    "task.staged",
}
EMBEDDED = DRIVERS | {
    "broker.jobs.appended",
    "broker.jobs.committed",
    "broker.jobs.staged",
    "stage.before_chunk",
    "stage.chunk",
    "store.unit.end",
    "store.unit.middle",
    "store.unit.synced",
}
ROCKETMQ = DRIVERS | {
    "journal.commit.appended",
    "journal.commit.before",
    "journal.publish.begin",
    "journal.publish.done",
    "journal.publish.sent",
    "journal.staged",
}

Committed = dict[str, dict[str, list[bytes]]]
"""Everything that a job has published: bodies in order, by topic and key."""


@dataclass(frozen=True, slots=True, order=True)
class Hit:
    """One passing of one failpoint, counted over all processes of a run."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name}:{self.number}"


SomeHit = TypeVar("SomeHit", bound=Hit)


def middle(hits: Sequence[SomeHit], name: str) -> SomeHit:
    """Give the hit of a failpoint in the middle of a run."""
    named = [hit for hit in hits if hit.name == name]
    return named[len(named) // 2]


def still_to_survive(hits: Sequence[SomeHit]) -> list[SomeHit]:
    """Give the hits from the one on that ``FAULTS_FROM`` names; all without it."""
    name, _, number = os.environ.get("FAULTS_FROM", "").partition(":")
    return [hit for hit in hits if (hit.name, hit.number) >= (name, int(number or 0))]


@dataclass(frozen=True, slots=True)
class Orders:
    """What a driver is told."""

    namesrv: str
    folder: Path
    names: Names
    #: The batch after which it ends; None: the end of the input.
    until: int | None
    failpoints: str
    #: Safeguards that it goes without.
    without: str
    #: Whether a position is a place to it, of whichever broker.
    forgets_brokers: bool


def drive(orders: Orders) -> None:
    """Be a driver, up to a batch or to the end of the input."""
    arm(orders.failpoints)
    more: dict[str, Any] = {
        "name": str(DriverName.here()),
        "journal": isinstance(orders.names, ClusterNames),
    }
    job = job_of(orders.names)
    with (
        without(orders.without),
        without_brokers() if orders.forgets_brokers else nullcontext(),
        LocalDriver(orders.namesrv, orders.folder, BATCH_SIZE, job=job, **more) as driver,
    ):
        driver.catch_up(None if orders.until is None else orders.until - driver.record.batch)


def job_of(names: Names) -> Topology:
    """Make the job for one broker, or for several."""
    return proof_on_cluster(names) if isinstance(names, ClusterNames) else proof(names)


class Enumeration:
    """The input, and any number of jobs that read it.

    Parameters
    ----------
    folder
        Everything of the test.
    rocketmq
        Address of a RocketMQ, which has no failpoints; without it there is an embedded broker,
        which has.
    names
        Whose job it is: that of a cluster takes some brokers of our own for that RocketMQ.
    """

    def __init__(self, folder: Path, rocketmq: str = "", names: type[Names] = Names) -> None:
        self._folder = folder
        self._names = names
        self._opened = ExitStack()
        self._of_broker = folder / "broker-points"
        self._of_broker.mkdir()
        self._broker = None if rocketmq else self._opened.enter_context(self._own_broker())
        self._address = self._broker.address if self._broker else rocketmq
        self._client = self._opened.enter_context(Client(self._address))
        self._mark = f"enumeration{os.getpid()}"
        self._sent = self._feed()
        self._jobs = 0
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["__main__", __name__])
        #: What a run without faults publishes, and where it passes.
        self.hits, self.committed = self._fault_free()

    def _own_broker(self) -> AbstractContextManager[Broker]:
        environment = {ENVIRONMENT_VARIABLE: f"folder:{self._of_broker}"}
        return running_broker(self._folder / "broker", environment=environment)

    def _feed(self) -> Sent:
        names = self._names(self._mark)
        make_topics(self._client, names)
        if isinstance(names, ClusterNames):
            feed_hours(self._client, names)
        feeder = ProofFeeder(self._address, names)
        feeder.feed(6)
        return feeder.stop()

    def _fault_free(self) -> tuple[list[Hit], Committed]:
        before = read_hits(self._of_broker)
        names, points = self._new_job()
        assert self._run(names, points) == 0
        mine, broker = read_hits(points), read_hits(self._of_broker)
        hits = [Hit(name, n + 1) for name, kinds in mine.items() for n in range(len(kinds))]
        hits += [
            Hit(name, n + 1)
            for name, kinds in broker.items()
            for n in range(len(kinds) - len(before.get(name, ())))
        ]
        return sorted(hits), committed(self._client, names)

    def survives(self, hit: Hit, without: str = "", *, forgets_brokers: bool = False) -> list[str]:
        """Run a job in which the process dies that makes a hit; list what is wrong after it.

        ``without`` names safeguards that the drivers go without, so that something is wrong; so do
        drivers to whom a position is a place, whichever broker it is of.
        """
        in_broker = any(hit.name == name for name in read_hits(self._of_broker))
        names, points = self._new_job()
        self._arm(hit, points, in_broker=in_broker)
        with kept_running(self._broker) as kills:
            deaths = self._run(names, points, without, forgets_brokers=forgets_brokers)
        problems = [] if deaths + len(kills) == 1 else [f"{deaths} deaths, {len(kills)} of brokers"]
        if committed(self._client, names) != self.committed:
            problems.append("what is published differs from what a run without faults publishes")
        journal = isinstance(names, ClusterNames)
        checkers = Checkers.of(self._client, names, journal=journal)
        problems += checkers.finish(self._sent)
        return problems + ([f"{checkers.repeats()} repeated"] if checkers.repeats() else [])

    def _arm(self, hit: Hit, points: Path, *, in_broker: bool) -> None:
        done = len(read_hits(self._of_broker)[hit.name]) if in_broker else 0
        folder = self._of_broker if in_broker else points
        arm_in_folder(folder, f"{hit.name}=kill:{done + hit.number}")

    def _new_job(self) -> tuple[Names, Path]:
        self._jobs += 1
        names = self._names(f"{self._mark}-{self._jobs}", self._mark)
        for topic in names.sinks:
            Admin(self._client).create_topic(topic, queues=QUEUES)
        points = self._folder / names.job / "points"
        points.mkdir(parents=True)
        return names, points

    def _run(
        self, names: Names, points: Path, without: str = "", *, forgets_brokers: bool = False
    ) -> int:
        """Run the drivers in turn, each until it ends well; how many of them died."""
        deaths = 0
        for folder, until in PHASES:
            for _ in range(_STARTS):
                place = self._folder / names.job / folder
                failpoints = f"folder:{points}"
                told = Orders(
                    self._address, place, names, until, failpoints, without, forgets_brokers
                )
                code = self._drive(told)
                if code == 0:
                    break
                assert code == -signal.SIGKILL, f"a driver ended with {code}"
                deaths += 1
            else:
                raise AssertionError(f"no driver of {names.job} reached batch {until}")
        return deaths

    def _drive(self, orders: Orders) -> int:
        process = self._processes.Process(target=drive, args=(orders,))
        process.start()
        process.join(60)
        assert process.exitcode is not None, "a driver hangs"
        return process.exitcode

    def close(self) -> None:
        """End the broker."""
        self._opened.close()


def committed(client: Client, names: Names) -> Committed:
    """Read everything that a job has published, and where its last commit stands."""
    found: Committed = {
        topic.removeprefix(names.job): bodies_by_key(client, topic) for topic in names.sinks
    }
    log = CommitReader()
    for message in Follower(client, job_of(names).commit_topic).new():
        if (commit := commit_in(message)) is not None:
            log.feed(message.queue_offset, commit)
    record = log.record
    assert record is not None, f"{names.job} has committed nothing"
    found["last commit"] = {"batch": [b"%d" % record.batch]} | {
        queue: [b"%d" % offset] for queue, offset in record.offsets.items()
    }
    return found
