"""Random kills and zombies without Spark: a few in the suite, many in `make soak`."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.client import Admin, Client
from tests.faults.broker import running_broker
from tests.faults.harness import PATIENT, await_true, seeded
from tests.faults.local_run import LocalRun
from tests.faults.proof_feeder import ProofFeeder, make_topics
from tests.faults.proof_fronts import Checkers, Front, job_of
from tests.faults.proof_pipeline import Names
from tests.faults.rocket_brokers import LEASE_SECONDS, running_rocket_brokers
from tests.faults.strikes import Survived, rounds

pytestmark = pytest.mark.soak

NAMES = Names("proof")
MINUTES = float(os.environ.get("MINUTES", "10"))
FRONTS = pytest.mark.parametrize("front", ["streams", "bolts"])


@contextmanager
def running(
    folder: Path, front: Front, *, rocketmq: bool
) -> Iterator[tuple[LocalRun, ProofFeeder]]:
    """A job that runs, and what feeds it."""
    more = {"lease_expiry": f"{LEASE_SECONDS} s"} if rocketmq else {}
    with (
        (running_rocket_brokers if rocketmq else running_broker)(folder / "broker") as broker,
        Client(broker.address, PATIENT) as client,
    ):
        make_topics(client, NAMES)
        run = LocalRun(broker, folder, NAMES, Checkers.of(client, NAMES, front), front, more=more)
        feeder = ProofFeeder(broker.address, NAMES)
        run.start()
        job = job_of(NAMES, front)
        own = {*job.state_topics.values(), job.commit_topic}
        await_true("the topics of the job", lambda: own <= set(Admin(client).topics()))
        feeder.start()
        try:
            yield run, feeder
        finally:
            run.clean_up()


def strike(run: LocalRun, kind: str, chance: random.Random, strikes: Counter[str]) -> None:
    """Let something happen at a random moment, and wait until the job goes on."""
    time.sleep(chance.uniform(0.0, 0.3))
    run.strikes()[kind](chance)
    strikes[kind] += 1
    run.await_commits()


def survive(
    folder: Path,
    front: Front,
    chance: random.Random,
    enough: Iterator[bool],
    *,
    rocketmq: bool = False,
) -> Survived:
    """Strike until it is enough, let the job catch up, and look at everything."""
    begin, survived = time.monotonic(), Survived()
    with running(folder, front, rocketmq=rocketmq) as (run, feeder):
        run.await_commits()
        for kind in rounds(run.strikes(), chance):
            if next(enough):
                break
            strike(run, kind, chance, survived.strikes)
        sent = feeder.stop()
        run.await_caught_up(sent)
        assert run.checkers.finish(sent) == []
        survived.repeats = run.checkers.repeats()
        assert rocketmq or not survived.repeats
        survived.epochs = max(record.epoch for record in run.checkers.bank.history)
        survived.batches = max(record.batch for record in run.checkers.bank.history)
    survived.records = sent.messages
    survived.looks = run.looks
    survived.seconds = time.monotonic() - begin
    print(survived, flush=True)
    return survived


@FRONTS
def test_ten_random_strikes_leave_every_result_once(tmp_path: Path, front: Front) -> None:
    enough = (number == 10 for number in itertools.count())
    survived = survive(tmp_path, front, seeded(), enough)
    assert survived.strikes.total() == 10


@pytest.mark.timeout(0)
@FRONTS
@pytest.mark.parametrize(
    "rocketmq",
    [False, pytest.param(True, marks=pytest.mark.rocketmq)],
    ids=["embedded", "rocketmq"],
)
def test_minutes_of_random_strikes_leave_every_result_once(
    tmp_path: Path, request: pytest.FixtureRequest, front: Front, rocketmq: bool
) -> None:
    end = time.monotonic() + 60 * MINUTES
    enough = (time.monotonic() > end for _ in itertools.count())
    chance = seeded(request.node.nodeid)
    assert survive(tmp_path, front, chance, enough, rocketmq=rocketmq).strikes
