"""A standby without Spark: when it goes, and what it does to the local copies meanwhile."""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Admin, Client, Producer, PullConsumer
from headrace.errors import JobFailedError
from headrace.protocol.messages import Message
from headrace.runtime.commit.drivers import DriverName, Lease
from headrace.runtime.commit.transactions import BrokerTransactions
from headrace.runtime.state.home import StateFollower, claimed, commits_units
from headrace.settings import JobSettings
from headrace.spark.cluster import Prepared, make_connection, prepare_topics
from headrace.spark.standby import Standby
from headrace.topology import Topology
from tests.faults.broker import Broker, make_lines, running_broker, send, send_lines
from tests.faults.harness import await_true
from tests.faults.local_driver import PARTITIONS, LocalDriver
from tests.faults.waiting import DOUBT, waiting
from tests.faults.word_pipeline import pipeline, topology

LINES = make_lines(60)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@contextmanager
def lease_of_another(standby_of: Broker, folder: Path, owner: str = "another") -> Iterator[Lease]:
    settings = JobSettings(namesrv=standby_of.address, data_dir=folder, partitions=PARTITIONS)
    connection = make_connection(topology, settings, standby_of.address)
    prepare_topics(connection)
    lease = Lease(connection.client, topology.name, owner)
    await_true("the lease", lease.acquire)
    try:
        yield lease
    finally:
        lease.release()
        connection.close()


def test_first_process_drives_at_once(broker: Broker, tmp_path: Path) -> None:
    with waiting(broker.address, tmp_path, alone=True) as standby:
        assert standby.ends()
        assert standby.answer is False
        assert not standby.warmed, "it need not get warm for nothing"


def test_lease_of_a_dead_process_of_this_machine_is_no_reason_to_wait(
    broker: Broker, tmp_path: Path
) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    owner = str(dataclasses.replace(DriverName.here(), pid=process.pid))
    with (
        LocalDriver(broker.address, tmp_path / "near"),
        lease_of_another(broker, tmp_path / "other", owner),
        waiting(broker.address, tmp_path, alone=True) as standby,
    ):
        assert standby.ends()
        assert standby.answer is False


def test_standby_that_cannot_be_kept_warm_ends(broker: Broker, tmp_path: Path) -> None:
    with (
        lease_of_another(broker, tmp_path / "other"),
        waiting(broker.address, tmp_path, alone=False, error=JobFailedError("no Java")) as standby,
    ):
        assert standby.ends()
        assert standby.answer is None
        assert standby.error is not None


def test_standby_goes_when_its_supervisor_says_so(broker: Broker, tmp_path: Path) -> None:
    with (
        lease_of_another(broker, tmp_path / "other"),
        waiting(broker.address, tmp_path, alone=False) as standby,
    ):
        assert standby.ready.wait(20)
        assert not standby.ends(1.5)
        standby.go.set()
        assert standby.ends(2.0), "it does not look at the lease of a driver that is dead"
        assert standby.answer is True
        assert standby.warmed[topology.name] > 0


def test_standby_elsewhere_goes_when_the_lease_ends(broker: Broker, tmp_path: Path) -> None:
    with (
        lease_of_another(broker, tmp_path / "other") as lease,
        waiting(broker.address, tmp_path, alone=True) as standby,
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
        waiting(broker.address, tmp_path, alone=True) as standby,
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
        waiting(broker.address, tmp_path, alone=True) as standby,
        LocalDriver(broker.address, tmp_path / "driver", batch_size=1) as driver,
    ):
        assert standby.ready.wait(20)
        lease.release()
        end = time.monotonic() + 3 * DOUBT
        while time.monotonic() < end:
            driver.commit(driver.process())
        assert standby.answer is None
        assert standby.ends(), "nothing is committed any more"


def test_doubt_that_a_broker_forgot_gives_way_to_the_driver(broker: Broker, tmp_path: Path) -> None:
    with (
        lease_of_another(broker, tmp_path / "other") as lease,
        waiting(broker.address, tmp_path, alone=True) as standby,
    ):

        def is_doubted() -> bool:
            if lease.acquire():
                lease.release()
                return False
            return True

        assert standby.ready.wait(20)
        lease.release()
        await_true("a doubt", is_doubted)
        lease.release_for(f"standby@{socket.gethostname()}:{os.getpid()}")
        assert lease.acquire()
        assert not standby.ends(3 * DOUBT)
        lease.release()
        assert standby.ends()


@pytest.mark.parametrize("moment", ["end_offsets", "plan"])
def test_first_commit_of_another_driver_at_any_moment_of_a_start_is_a_unit(
    broker: Broker, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = pipeline(moment)
    with ExitStack() as opened:
        client = opened.enter_context(Client(broker.address))
        make_topics(client, job)
        send_lines(client, LINES[:4], moment)
        driver = opened.enter_context(LocalDriver(broker.address, tmp_path / "other", job=job))
        place = PullConsumer if moment == "end_offsets" else BrokerTransactions
        asked = getattr(place, moment)

        def beside(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(place, moment, asked)
            driver.commit(driver.process())
            return asked(*args, **more)

        monkeypatch.setattr(place, moment, beside)
        assert commits_units(client, job.name)
        assert getattr(place, moment) is asked


def test_copies_follow_every_commit_so_that_nothing_is_left_to_restore(
    broker: Broker, tmp_path: Path
) -> None:
    send(broker.address, LINES)
    settings = JobSettings(namesrv=broker.address, data_dir=tmp_path / "far", partitions=PARTITIONS)
    connection = make_connection(topology, settings, broker.address)
    prepare_topics(connection)
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
        with waiting(broker.address, tmp_path, alone=False) as standby:
            assert standby.ready.wait(20)
            assert not standby.ends(2.5)
            assert [path.name for path in state_root.iterdir()] == ["claim"]


def test_every_group_of_a_topology_is_warm_and_has_its_copies(tmp_path: Path) -> None:
    jobs = [pipeline("-left"), pipeline("-right")]
    root = tmp_path / "far"
    with running_broker(tmp_path / "broker") as broker, Client(broker.address) as client:
        for job in jobs:
            make_topics(client, job)
        with ExitStack() as opened:
            drivers = [
                opened.enter_context(LocalDriver(broker.address, tmp_path / job.name, job=job))
                for job in jobs
            ]
            for job, driver in zip(jobs, drivers, strict=True):
                lines = [
                    Message(topic=job.sources[0].topics[0], body=line.encode())
                    for line in make_lines(30)
                ]
                Producer(client).send_batch(lines)
                assert driver.catch_up() > 0
            with waiting(broker.address, root, alone=False, jobs=jobs) as standby:
                assert standby.ready.wait(20)
                time.sleep(2.5)
                standby.go.set()
                assert standby.ends()
                assert set(standby.warmed) == {job.name for job in jobs}
                assert [
                    restored(*pair) for pair in zip(standby.prepared, drivers, strict=True)
                ] == [
                    0,
                    0,
                ]


def make_topics(client: Client, job: Topology) -> None:
    for topic in {*job.sources[0].topics, *(sink.topics[0] for sink in job.sinks)}:
        Admin(client).create_topic(topic, queues=2)


def restored(prepared: Prepared, driver: LocalDriver) -> int:
    """Count the state messages that a driver would have to read before its first batch."""
    connection, plan = prepared.connection, prepared.connection.plan
    copies = connection.state_home.copies(list(plan.state_topics), plan.state_root)
    read = 0
    for state in driver.record.states:
        copy = copies.open(state.store, state.partition, state, driver.record.lineage)
        read += copy.restored
        copy.close()
    return read
