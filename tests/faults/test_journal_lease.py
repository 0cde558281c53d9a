"""Who may open an epoch, when: two drivers in one process, on a broker that knows no jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, PullConsumer
from headrace.errors import FencedError, HeadraceError, JobFailedError, LeaseLostError
from headrace.protocol.transactions import CommitRecord
from headrace.runtime.commit.drivers import DriverName
from headrace.runtime.commit.journal.lease import LeaseTimes
from headrace.runtime.commit.journal.transactions import JournalTransactions
from headrace.runtime.commit.lease import LeaseWait
from headrace.runtime.commit.transactions import BatchEnd
from headrace.topology.names import commit_topic, journal_topic

JOB = "leased"
EXPIRY = 2.0

Make = Callable[[], JournalTransactions]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes drivers' transactions, each with a connection of its own."""
    settings = BrokerSettings(lock_expiry=timedelta(seconds=EXPIRY))
    with EmbeddedBroker(tmp_path / "broker", settings=settings) as broker, ExitStack() as opened:
        admin = Admin(opened.enter_context(Client(broker.address)))
        admin.create_topic(commit_topic(JOB), 1, attributes={"cleanup.policy": "COMPACTION"})
        admin.create_topic(journal_topic(JOB), 1)

        def made() -> JournalTransactions:
            client = opened.enter_context(Client(broker.address))
            consumer = PullConsumer(client, JOB)
            return JournalTransactions(client, consumer, JOB, times=LeaseTimes(EXPIRY))

        yield made


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


def test_driver_that_may_live_is_waited_for_twice_as_long_as_its_lock_lasts(make: Make) -> None:
    first, second = make(), make()
    driver = name()
    first.open(driver)
    assert first._lease is not None
    # It renews no more, as if it stood still.
    first._lease._over.set()
    seen: list[LeaseWait | None] = []
    opening = threading.Thread(target=opened_in, args=(second,))
    begin = time.time()
    opening.start()
    while opening.is_alive():
        seen.append(second.waiting)
        time.sleep(0.05)
    waited = time.time() - begin
    assert 2 * EXPIRY - 1 < waited < 2 * EXPIRY + 2
    waits = [wait for wait in seen if wait is not None]
    assert {wait.driver for wait in waits} == {driver}
    assert waits[0].until is None, "the lock is not granted yet"
    assert waits[-1].until is not None
    assert abs(waits[-1].until.timestamp() - (begin + waited)) < 1.0
    assert second.waiting is None
    with pytest.raises(FencedError, match="was taken over"):
        first.commit(empty_batch(1, 1))
    with pytest.raises(FencedError, match="was taken over"):
        first.open(name())
    second.close()


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
    driver.close()
