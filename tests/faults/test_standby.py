"""A standby without Spark: when it goes, and what it does to the local copies meanwhile."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, JobFailedError
from headrace.runtime.commit.drivers import DriverName
from headrace.runtime.commit.lease import Lease
from headrace.runtime.state.claims import claimed
from headrace.runtime.state.following import StateFollower
from headrace.settings import JobSettings
from headrace.spark.launch import Prepared, make_connection, pickle_plan, prepare_topics
from headrace.spark.standby import Standby
from tests.faults.broker import Broker, make_lines, running_broker, send
from tests.faults.harness import await_true
from tests.faults.local_driver import PARTITIONS, LocalDriver
from tests.faults.word_pipeline import topology

LINES = make_lines(60)
DOUBT = 1.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


class Waiting:
    """A job that stands by in a thread."""

    def __init__(
        self, broker: Broker, folder: Path, *, alone: bool, error: HeadraceError | None = None
    ) -> None:
        self._fault = error
        self.error: HeadraceError | None = None
        settings = JobSettings(namesrv=broker.address, data_dir=folder, partitions=PARTITIONS)
        connection = make_connection(topology, settings, broker.address)
        self.prepared = Prepared(
            connection, pickle_plan(connection.plan), prepare_topics(connection)
        )
        self.go, self.alone, self.ready = threading.Event(), threading.Event(), threading.Event()
        if alone:
            self.alone.set()
        #: Whether there was a driver before it; None while it waits.
        self.answer: bool | None = None
        self.warmed = 0
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def prepare(self) -> list[Prepared]:
        return [self.prepared]

    def _wait(self) -> None:
        standby = Standby(self, warm=self._warm, doubt=DOUBT)
        try:
            self.answer = standby.wait(self.go, alone=self.alone, ready=self.ready.set)
        except HeadraceError as error:
            self.error = error

    def _warm(self, prepared: Prepared, batches: int, over: threading.Event) -> None:
        assert prepared is self.prepared
        if self._fault is not None:
            raise self._fault
        self.warmed += batches

    def ends(self, patience: float = 20.0) -> bool:
        self._thread.join(patience)
        return not self._thread.is_alive()

    def close(self) -> None:
        self.go.set()
        self._thread.join()
        self.prepared.connection.close()


@contextmanager
def waiting(
    broker: Broker, folder: Path, *, alone: bool, error: HeadraceError | None = None
) -> Iterator[Waiting]:
    standby = Waiting(broker, folder, alone=alone, error=error)
    try:
        yield standby
    finally:
        standby.close()


@contextmanager
def lease_of_another(standby_of: Broker, folder: Path, owner: str = "another") -> Iterator[Lease]:
    settings = JobSettings(namesrv=standby_of.address, data_dir=folder, partitions=PARTITIONS)
    connection = make_connection(topology, settings, standby_of.address)
    prepare_topics(connection)
    lease = Lease(connection.client, topology.name, topology.commit_topic, owner)
    await_true("the lease", lease.acquire)
    try:
        yield lease
    finally:
        lease.release()
        connection.close()


def test_first_process_drives_at_once(broker: Broker, tmp_path: Path) -> None:
    with waiting(broker, tmp_path, alone=True) as standby:
        assert standby.ends()
        assert standby.answer is False
        assert standby.warmed == 0, "it need not get warm for nothing"


def test_lease_of_a_dead_process_of_this_machine_is_no_reason_to_wait(
    broker: Broker, tmp_path: Path
) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    owner = str(dataclasses.replace(DriverName.here(), pid=process.pid))
    with (
        LocalDriver(broker.address, tmp_path / "near"),
        lease_of_another(broker, tmp_path / "other", owner),
        waiting(broker, tmp_path, alone=True) as standby,
    ):
        assert standby.ends()
        assert standby.answer is False


def test_standby_that_cannot_be_kept_warm_ends(broker: Broker, tmp_path: Path) -> None:
    with (
        lease_of_another(broker, tmp_path / "other"),
        waiting(broker, tmp_path, alone=False, error=JobFailedError("no Java")) as standby,
    ):
        assert standby.ends()
        assert standby.answer is None
        assert standby.error is not None


def test_standby_goes_when_its_supervisor_says_so(broker: Broker, tmp_path: Path) -> None:
    with (
        lease_of_another(broker, tmp_path / "other"),
        waiting(broker, tmp_path, alone=False) as standby,
    ):
        assert standby.ready.wait(20)
        assert not standby.ends(1.5)
        standby.go.set()
        assert standby.ends(2.0), "it does not look at the lease of a driver that is dead"
        assert standby.answer is True
        assert standby.warmed > 0


def test_standby_elsewhere_goes_when_the_lease_ends(broker: Broker, tmp_path: Path) -> None:
    with (
        lease_of_another(broker, tmp_path / "other") as lease,
        waiting(broker, tmp_path, alone=True) as standby,
    ):
        assert standby.ready.wait(20)
        assert not standby.ends(2.5)
        lease.release()
        assert standby.ends()
        assert standby.answer is True


def test_standby_elsewhere_knows_who_drives(broker: Broker, tmp_path: Path) -> None:
    name = "laptop:4711@boot/space/1/mark"
    with (
        LocalDriver(broker.address, tmp_path / "other", name=name),
        lease_of_another(broker, tmp_path / "other", owner=name) as lease,
        waiting(broker, tmp_path, alone=True) as standby,
    ):
        assert Standby(standby).driver() == name
        lease.release()
        assert standby.ends()
        assert Standby(standby).driver() == name, "it ran it last"


def test_lease_that_a_broker_forgot_is_no_reason_while_there_are_commits(
    broker: Broker, tmp_path: Path
) -> None:
    send(broker.address, LINES)
    with (
        lease_of_another(broker, tmp_path / "other") as lease,
        waiting(broker, tmp_path, alone=True) as standby,
        LocalDriver(broker.address, tmp_path / "driver", batch_size=1) as driver,
    ):
        assert standby.ready.wait(20)
        lease.release()
        end = time.monotonic() + 3 * DOUBT
        while time.monotonic() < end:
            driver.commit(driver.process())
        assert standby.answer is None
        assert standby.ends(), "nothing is committed any more"


def test_copies_follow_every_commit_so_that_nothing_is_left_to_restore(
    broker: Broker, tmp_path: Path
) -> None:
    send(broker.address, LINES)
    settings = JobSettings(namesrv=broker.address, data_dir=tmp_path / "far", partitions=PARTITIONS)
    connection = make_connection(topology, settings, broker.address)
    plan = connection.plan
    follower = StateFollower(connection.state_home, list(plan.state_topics), plan.state_root)
    with LocalDriver(broker.address, tmp_path / "near") as driver:
        driver.commit(driver.process())
        first = follower.follow()
        assert first > 0
        assert follower.follow() == 0, "nothing was committed since"
        driver.commit(driver.process())
        assert 0 < follower.follow() < first * 2
        record = driver.record
    copies = connection.state_home.copies(list(plan.state_topics), plan.state_root)
    for state in record.states:
        copy = copies.open(state.store, state.partition, state, record.lineage)
        assert copy.restored == 0
        assert sum(1 for _ in copy.base.scan()) == state.count
        copy.close()
    connection.close()


def test_copies_of_a_driver_on_this_machine_are_left_alone(broker: Broker, tmp_path: Path) -> None:
    state_root = tmp_path / "state" / topology.name
    with (
        claimed(state_root) as ours,
        lease_of_another(broker, tmp_path / "other"),
        LocalDriver(broker.address, tmp_path / "near") as driver,
    ):
        assert ours
        send(broker.address, LINES)
        driver.commit(driver.process())
        with waiting(broker, tmp_path, alone=False) as standby:
            assert standby.ready.wait(20)
            assert not standby.ends(2.5)
            assert [path.name for path in state_root.iterdir()] == ["claim"]
