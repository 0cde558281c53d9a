"""A standby where the lease is all that tells of a driver: on RocketMQ, whose protocol runs here."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client
from headrace.runtime.commit.drivers import DriverName
from tests.faults.broker import make_lines, send
from tests.faults.local_driver import LocalDriver
from tests.faults.waiting import DOUBT, waiting
from tests.faults.word_pipeline import EACH, LATEST, LINES, topology

#: Far longer than anything here takes, so that nobody can have waited for it; and soon over.
LONG, SHORT = 60.0, 3.0


def settings(expiry: float) -> dict[str, Any]:
    return {"journal": True, "lease_expiry": timedelta(seconds=expiry)}


@contextmanager
def locking(folder: Path, expiry: float) -> Iterator[str]:
    """Start a broker whose locks last so long, with lines in it; give its address."""
    options = BrokerSettings(lock_expiry=timedelta(seconds=expiry))
    with EmbeddedBroker(folder / "broker", settings=options) as broker:
        with Client(broker.address) as client:
            for topic in (LINES, LATEST, EACH):
                Admin(client).create_topic(topic, queues=2)
        send(broker.address, make_lines(40))
        yield broker.address


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with locking(tmp_path, LONG) as address:
        yield address


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[str]:
    with locking(tmp_path, SHORT) as address:
        yield address


def living() -> str:
    """A driver of another machine: nobody here can tell whether it lives."""
    return str(dataclasses.replace(DriverName.here(), boot="another-boot"))


def dead() -> str:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return str(dataclasses.replace(DriverName.here(), pid=process.pid))


def driver(address: str, folder: Path, name: str, expiry: float = LONG) -> LocalDriver:
    return LocalDriver(address, folder, name=name, **settings(expiry))


def fall_silent(driver: LocalDriver) -> None:
    """Do as if the driver was killed: its lease is renewed no more."""
    lease = driver._job.transactions._lease  # type: ignore[attr-defined]
    lease._over.set()
    driver.abandon()


def test_driver_that_ends_in_order_is_followed_at_once(address: str, tmp_path: Path) -> None:
    first = driver(address, tmp_path / "near", living())
    with waiting(address, tmp_path / "far", alone=True, **settings(LONG)) as standby:
        assert standby.ready.wait(20)
        first.catch_up()
        assert not standby.ends(2.5)
        first.close()
        assert standby.ends(LONG / 2)
        assert standby.answer is True
    begin = time.monotonic()
    with driver(address, tmp_path / "far", living()) as second:
        assert time.monotonic() - begin < LONG / 2
        assert (second.epoch, second.record.batch) == (2, first.record.batch)


def test_driver_that_falls_silent_has_surely_stopped_when_its_lease_has_expired(
    hasty: str, tmp_path: Path
) -> None:
    first = driver(hasty, tmp_path / "near", living(), SHORT)
    with waiting(hasty, tmp_path / "far", alone=True, **settings(SHORT)) as standby:
        assert standby.ready.wait(20)
        first.catch_up()
        fall_silent(first)
        begin = time.monotonic()
        assert standby.ends(20)
        assert time.monotonic() - begin > SHORT / 2 + DOUBT
    begin = time.monotonic()
    with driver(hasty, tmp_path / "far", living(), SHORT) as second:
        assert time.monotonic() - begin < SHORT - 0.5, "its lease is not waited for once more"
        assert second.record.batch == first.record.batch


def test_driver_of_this_machine_that_died_is_not_waited_for(address: str, tmp_path: Path) -> None:
    first = driver(address, tmp_path / "near", dead())
    first.catch_up()
    fall_silent(first)
    with waiting(address, tmp_path / "near", alone=True, **settings(LONG)) as standby:
        assert standby.ends(LONG / 2)
        assert standby.answer is False
        assert not standby.warmed[topology.name], "it need not get warm for nothing"


def test_copies_follow_what_is_published(address: str, tmp_path: Path) -> None:
    with (
        driver(address, tmp_path / "near", living()) as first,
        waiting(address, tmp_path / "far", alone=False, **settings(LONG)) as standby,
    ):
        first.catch_up()
        assert standby.ready.wait(20)
        time.sleep(2.5)
        standby.go.set()
        assert standby.ends(LONG / 2)
        (prepared,) = standby.prepared
        connection, plan = prepared.connection, prepared.connection.plan
        copies = connection.state_home.copies(list(plan.state_topics), plan.state_root)
        for state in first.record.states:
            copy = copies.open(state.store, state.partition, state, first.record.lineage)
            assert copy.restored == 0
            copy.close()
