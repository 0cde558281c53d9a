"""``headrace run`` replaces a driver that is killed: nothing is lost, nothing doubled, nothing left."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from headrace.client import Admin, Client, Producer, PullConsumer
from headrace.keys import key_from_properties
from headrace.protocol.messages import Message
from tests.clusters import Cluster
from tests.faults import topology_program
from tests.faults.broker import QUEUES, make_lines, running_broker
from tests.faults.feeder import Feeder
from tests.faults.harness import Driver, KillTest, await_true, kill_test
from tests.faults.topology_program import GROUPS, counts_of, lines_of
from tests.faults.verification import problems, read_results
from tests.faults.word_pipeline import EACH, LATEST, LINES, MARK, pipeline
from tests.run.forking import descendants

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#: Longer than Java takes to end by itself, shorter than a store waits for the lock of another task.
SOON = 20.0
#: Until what stands still has been noticed and has ended, with a time-out of 10 s.
NOTICED = 10.0 + 3 * SOON


def supervised(run: KillTest, *switches: str) -> Driver:
    driver = Driver(
        run.broker.address,
        run.folder / "job",
        run.folder / "driver.log",
        program=run.program,
        environment=run.environment,
        supervised=True,
        switches=switches,
    )
    run.drivers.append(driver)
    return driver


def drivers_of(supervisor: Driver) -> list[psutil.Process]:
    """The drivers that a supervisor started, oldest first."""
    children = psutil.Process(supervisor.pid).children()
    return sorted(
        (child for child in children if "--channel" in child.cmdline()),
        key=lambda child: child.create_time(),
    )


def finish(run: KillTest, feeder: Feeder, mark: str = "") -> None:
    feeder.stop()
    run.await_caught_up()
    assert run.driver.stop() == 0, run.driver.said
    assert problems(read_results(run.broker.address, mark), feeder.confirmed) == []


@pytest.mark.budget(90)  # Three drivers are struck, in one job.
@pytest.mark.timeout(600)
def test_driver_that_is_killed_or_stands_still_is_replaced(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker") as broker, kill_test(tmp_path, broker) as run:
        feeder = Feeder(broker.address)
        feeder.start()
        supervisor = supervised(run, "--driver-timeout=10s")
        strikes = (kill_driver, SOON), (suspend_driver, NOTICED), (suspend_java, NOTICED)
        for epoch, (strike, patience) in enumerate(strikes, 1):
            run.await_batches(3)
            assert run.standing()[0] == epoch, "each driver opens an epoch"
            (driver,) = drivers_of(supervisor)
            family = [driver, *descendants(driver.pid)]
            assert supervisor.java()
            assert supervisor.workers()
            strike(supervisor, driver)
            # What is left of it must not work on, nor hold the local state of its successor.
            gone, alive = psutil.wait_procs(family, timeout=patience)
            assert not alive, f"{strike.__name__}: {len(gone)} ended"
        run.await_batches(3)
        finish(run, feeder)
        assert "was killed by SIGKILL: starting another one." in supervisor.said
        assert "as it was stopped (SIGSTOP): killing it." in supervisor.said
        assert (
            "gave no sign of life for 10 s (setting driver_timeout): killing it." in supervisor.said
        )
        assert "in run_query" in supervisor.said, "it shows where its threads are"
        assert supervisor.said.count("starting another one.") == 3


def kill_driver(_: Driver, driver: psutil.Process) -> None:
    driver.kill()


def suspend_driver(_: Driver, driver: psutil.Process) -> None:
    driver.suspend()


def suspend_java(supervisor: Driver, _: psutil.Process) -> None:
    (java,) = supervisor.java()
    java.suspend()


@pytest.mark.timeout(600)
def test_driver_stops_in_order_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker") as broker, kill_test(tmp_path, broker) as run:
        feeder = Feeder(broker.address)
        feeder.start()
        supervisor = supervised(run)
        run.await_batches(2)
        family = supervisor.family()
        psutil.Process(supervisor.pid).kill()
        await_true("all ended", lambda: not psutil.wait_procs(family, timeout=0)[1])
        assert "the next start goes on from there" in supervisor.said
        supervised(run)
        run.await_batches(2)
        finish(run, feeder)


@pytest.mark.rocketmq
@pytest.mark.timeout(600)
def test_standby_on_rocketmq_does_not_wait_for_the_lease_of_the_dead(
    rocketmq: Cluster, tmp_path: Path
) -> None:
    mark = f"-standby-{os.getpid()}"
    with Client(rocketmq.namesrv) as client:
        for topic in (LINES, LATEST, EACH):
            Admin(client).create_topic(topic + mark, queues=QUEUES)
    broker = SimpleNamespace(address=rocketmq.namesrv)
    own = {"job": pipeline(mark), "environment": {MARK: mark}}
    with kill_test(tmp_path, broker, **own) as run:
        feeder = Feeder(rocketmq.namesrv, mark=mark)
        feeder.start()
        supervisor = supervised(run, "--standby")
        await_true("a standby", lambda: "Standing by" in supervisor.said)
        run.await_batches(2)
        drivers_of(supervisor)[0].kill()
        begin = time.monotonic()
        run.await_epoch(2)
        run.await_batches(1)
        took = time.monotonic() - begin
        assert took < 45.0, "the lease alone would last 60 s"
        finish(run, feeder, mark)
        assert supervisor.said.count("its standby takes over.") == 1


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_standby_takes_over_and_another_one_stands_by(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker") as broker, kill_test(tmp_path, broker) as run:
        feeder = Feeder(broker.address)
        feeder.start()
        supervisor = supervised(run, "--standby")
        await_true("a standby", lambda: "Standing by" in supervisor.said)
        run.await_batches(2)
        driver, standby = drivers_of(supervisor)
        begin = time.monotonic()
        driver.kill()
        run.await_epoch(2)
        print(f"epoch after {time.monotonic() - begin:.2f} s", flush=True)
        run.await_batches(1)
        print(f"commit after {time.monotonic() - begin:.2f} s", flush=True)
        assert standby in drivers_of(supervisor)
        await_true("another standby", lambda: len(drivers_of(supervisor)) == 2)
        assert driver not in drivers_of(supervisor)
        finish(run, feeder)
        assert supervisor.said.count("its standby takes over.") == 1


@pytest.mark.timeout(600)
def test_standby_takes_over_all_groups_of_a_topology(tmp_path: Path) -> None:
    program = Path(str(topology_program.__file__))
    job = topology_program.topology.groups[0]
    with (
        running_broker(tmp_path / "broker") as broker,
        kill_test(tmp_path, broker, job=job, program=program) as run,
    ):
        for group in GROUPS:
            for topic in (lines_of(group), counts_of(group)):
                Admin(run.client).create_topic(topic, queues=2)
        sent = {group: send_lines(run.client, group, 0) for group in GROUPS}
        supervisor = supervised(run, "--standby")
        await_true("a standby", lambda: "Standing by" in supervisor.said)
        driver, standby = drivers_of(supervisor)
        driver.kill()
        for group in GROUPS:
            sent[group] += send_lines(run.client, group, 1)
            await_counts(run.client, group, sent[group])
        assert standby in drivers_of(supervisor)
        await_true("another standby", lambda: len(drivers_of(supervisor)) == 2)
        assert {standing.record.epoch for standing in Admin(run.client).jobs()} == {2}
        assert run.driver.stop() == 0, run.driver.said


def send_lines(client: Client, group: str, seed: int) -> Counter[str]:
    """Send lines to a group, and count their words."""
    lines = make_lines(100, seed, first=100 * seed)
    topic = lines_of(group)
    Producer(client).send_batch([Message(topic=topic, body=line.encode()) for line in lines])
    return Counter(word for line in lines for word in line.split())


def await_counts(client: Client, group: str, wanted: Counter[str]) -> None:
    await_true(f"counts of {group}", lambda: counted(client, group) == wanted)


def counted(client: Client, group: str) -> Counter[str]:
    """Read how often each word was counted; each occurrence must have given a count of its own."""
    consumer = PullConsumer(client)
    counts: dict[str, list[int]] = {}
    for queue in client.queues(counts_of(group)):
        offset, end = 0, consumer.end_offset(queue)
        while offset < end:
            result = consumer.pull(queue, offset)
            for message in result.messages():
                word = str(key_from_properties(message.properties))
                counts.setdefault(word, []).append(int(message.body))
            offset = result.next_offset
    for word, values in counts.items():
        assert sorted(values) == list(range(1, len(values) + 1)), f"{group}: {word} had {values}"
    return Counter({word: len(values) for word, values in counts.items()})
