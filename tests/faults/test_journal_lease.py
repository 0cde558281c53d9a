"""Who may open an epoch, when: two drivers in one process, on a broker that knows no jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec import structs

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, PullConsumer
from headrace.errors import (
    FencedError,
    HeadraceError,
    JobFailedError,
    LeaseLostError,
    PredecessorMismatchError,
)
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.commit.drivers import DriverName, LeaseWait
from headrace.runtime.commit.journal.lease import LeaseTimes
from headrace.runtime.commit.journal.transactions import JournalTransactions
from headrace.runtime.commit.transactions import BatchEnd
from headrace.topology.names import commit_topic, journal_topic

JOB = "leased"
EXPIRY = 2.0


class Cluster:
    """A broker that knows no jobs, and makers of connections to it."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self._folder = folder
        self._opened = opened
        self._broker = self._start(0)
        self.address = self._broker.address

    def _start(self, port: int) -> EmbeddedBroker:
        settings = BrokerSettings(lock_expiry=timedelta(seconds=EXPIRY))
        return self._opened.enter_context(EmbeddedBroker(self._folder, port, settings))

    def restart(self) -> None:
        """Have the broker forget its locks, as they are in memory."""
        self._broker.stop()
        self._broker = self._start(int(self.address.rpartition(":")[2]))

    def transactions(self) -> JournalTransactions:
        """Make a driver's transactions, with a connection of their own."""
        client = self._opened.enter_context(Client(self.address))
        consumer = PullConsumer(client, JOB)
        return JournalTransactions(client, consumer, JOB, times=LeaseTimes(EXPIRY))


Make = Callable[[], JournalTransactions]


@pytest.fixture
def leased(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as opened:
        cluster = Cluster(tmp_path / "broker", opened)
        admin = Admin(opened.enter_context(Client(cluster.address)))
        admin.create_topic(commit_topic(JOB), 1, attributes={"cleanup.policy": "COMPACTION"})
        admin.create_topic(journal_topic(JOB), 1)
        yield cluster


@pytest.fixture
def make(leased: Cluster) -> Make:
    return leased.transactions


def name() -> str:
    return str(DriverName.here())


def opened_in(transactions: JournalTransactions) -> float:
    began = time.monotonic()
    transactions.open(name())
    return time.monotonic() - began


def empty_batch(epoch: int, batch: int) -> BatchEnd:
    record = CommitRecord(job=JOB, kind="commit", epoch=epoch, batch=batch)
    return BatchEnd(previous=batch - 1, parts=[], record=record)


def test_first_driver_and_one_after_an_end_in_order_do_not_wait(make: Make) -> None:
    first = make()
    assert opened_in(first) < EXPIRY / 2
    first.commit(empty_batch(1, 1))
    first.publish(empty_batch(1, 1).record)
    first.close()
    second = make()
    assert opened_in(second) < EXPIRY / 2
    assert second.plan([], {}, 0, 0).record is not None
    second.close()


def silent(transactions: JournalTransactions) -> None:
    """Have a driver renew its lease no more, as if it stood still, or its machine were gone."""
    assert transactions._lease is not None
    transactions._lease._over.set()


def waits_of(successor: JournalTransactions) -> tuple[float, list[LeaseWait | None]]:
    """Open an epoch; give how long that took, and what was seen of it."""
    seen: list[LeaseWait | None] = []
    opening = threading.Thread(target=opened_in, args=(successor,))
    begin = time.monotonic()
    opening.start()
    while opening.is_alive():
        seen.append(successor.waiting)
        time.sleep(0.05)
    return time.monotonic() - begin, seen


def test_driver_that_may_live_is_waited_for_as_long_as_its_lock_lasts(make: Make) -> None:
    first, second = make(), make()
    driver = name()
    first.open(driver)
    silent(first)
    waited, seen = waits_of(second)
    assert EXPIRY - 1 < waited < EXPIRY + 1
    waits = {(wait.driver, wait.until) for wait in seen if wait is not None}
    assert waits == {(driver, None)}, "it goes on when it gets the lock"
    assert second.waiting is None
    with pytest.raises(FencedError, match="was taken over"):
        first.commit(empty_batch(1, 1))
    with pytest.raises(FencedError, match="was taken over"):
        first.open(name())
    second.close()


def test_lock_that_a_broker_may_have_forgotten_is_waited_for_once_more(leased: Cluster) -> None:
    first, second, third = leased.transactions(), leased.transactions(), leased.transactions()
    driver = name()
    first.open(driver)
    silent(first)
    leased.restart()
    began = time.time()
    waited, seen = waits_of(second)
    assert waited > EXPIRY, "the lock is there to be had, and the driver may still rely on it"
    waits = [wait for wait in seen if wait is not None]
    assert {wait.driver for wait in waits} == {driver}
    assert waits[-1].until is not None
    assert abs(waits[-1].until.timestamp() - (began + waited)) < 1.0
    silent(second)
    assert waits_of(third)[0] < EXPIRY + 1, "the broker that runs now keeps the second one's lock"
    third.close()


def test_driver_learns_that_another_process_of_the_broker_keeps_its_lock(leased: Cluster) -> None:
    first, second = leased.transactions(), leased.transactions()
    record = first.open(name()).record
    assert first._lease is not None
    leased.restart()
    first._lease.renew()
    first.commit(empty_batch(1, 1))
    first.publish(empty_batch(1, 1).record)
    newest = first.plan([], {}, 0, 0).record
    assert newest is not None
    assert record.lock_keeper
    assert newest.lock_keeper not in ("", record.lock_keeper)
    silent(first)
    assert waits_of(second)[0] < EXPIRY + 1
    second.close()


def test_lease_of_a_broker_that_took_the_place_of_another_needs_a_new_epoch(make: Make) -> None:
    driver, own = make(), name()
    driver.open(own)
    lease = driver._lease
    assert lease is not None
    silent(driver)
    lease.keeper = "127.0.0.1:1 since 1"
    until = lease._term.until
    assert lease.acquire()
    assert lease._term.until == until
    time.sleep(EXPIRY * 3 / 4)
    with pytest.raises(LeaseLostError):
        driver.commit(empty_batch(1, 1))
    assert driver.open(own).epoch == 2
    driver.close()


@pytest.mark.slow
def test_driver_that_runs_is_waited_for_until_somebody_gives_up(make: Make) -> None:
    first, second = make(), make()
    driver = name()
    first.open(driver)
    failures: list[HeadraceError] = []

    def wait() -> None:
        try:
            second.open(name())
        except HeadraceError as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(3 * EXPIRY)
    assert waiting.is_alive()
    seen = second.waiting
    assert seen is not None
    assert (seen.driver, seen.until) == (driver, None)
    first.commit(empty_batch(1, 1))
    second.give_up()
    waiting.join(10)
    (failure,) = failures
    assert isinstance(failure, JobFailedError)
    assert "waited for the lease" in str(failure)
    first.close()


def test_lease_that_was_lost_is_ours_again_with_a_new_epoch_only(make: Make) -> None:
    driver, own = make(), name()
    driver.open(own)
    assert driver._lease is not None
    driver._lease._over.set()
    time.sleep(EXPIRY)
    assert driver._lease.acquire()
    with pytest.raises(LeaseLostError):
        driver.commit(empty_batch(1, 1))
    assert driver.open(own).epoch == 2
    assert not driver.commit(empty_batch(2, 1)).already
    assert driver.commit(empty_batch(2, 1)).already
    # The same by its numbers alone: another plan of the batch.
    other = empty_batch(2, 1)
    other = replace(other, record=structs.replace(other.record, offsets={"in@broker-a@0": 2}))
    with pytest.raises(PredecessorMismatchError):
        driver.commit(other)
    driver.close()
