"""The long run: processes die and stand still at random, three checkers look; see `make soak`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.client import Client
from tests.faults import proof_pipeline
from tests.faults.broker import running_broker
from tests.faults.harness import KillTest, kill_test, seeded
from tests.faults.proof_checks import Checkers, Watch
from tests.faults.proof_feeder import PATIENT, ProofFeeder, make_topics
from tests.faults.proof_pipeline import Names, proof
from tests.faults.strikes import ON_A_CLUSTER, PATIENCE_SECONDS, STRIKES, Strike, Survived

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

MINUTES = float(os.environ.get("MINUTES", "10"))
NAMES = Names("proof")

_JOB = {
    "--partitions": "2",
    "--max-records-per-batch": "120",
    "--request-timeout": f"{PATIENCE_SECONDS} s",
}
#: A master, three workers and their executors, all of them processes of this machine.
_CLUSTER = {"--master": "local-cluster[3,1,1024]"}
_SPARK = {
    "HEADRACE_SPARK_CONFIG": "spark.executor.memory=512m,spark.executor.heartbeatInterval=1s,"
    f"spark.network.timeout={PATIENCE_SECONDS}s,spark.task.maxFailures=4"
}


@dataclass
class Scene:
    """A job that runs, what feeds it, and what looks at it."""

    run: KillTest
    feeder: ProofFeeder
    checkers: Checkers
    watch: Watch
    survived: Survived

    def strike(self, kind: str, strike: Strike, chance: random.Random) -> None:
        """Let one process fail at a random moment, and wait until the job goes on."""
        self.run.await_batches(1)
        time.sleep(chance.uniform(0.0, 1.0))
        print(f"{kind}, after epoch and batch {self.run.standing()}", flush=True)
        strike(self.run, chance)
        self.survived.strikes[kind] += 1
        self.run.await_batches(1)
        assert self.watch.problems == []

    def finish(self) -> Survived:
        """Let the job catch up, end it, and look at everything."""
        sent = self.feeder.stop()
        self.run.await_caught_up()
        assert self.run.driver.stop() == 0, self.run.driver.said
        self.watch.stop()
        assert self.watch.problems + self.checkers.finish(sent) == []
        self.survived.epochs, self.survived.batches = self.run.standing()
        self.survived.records = sent.messages
        self.survived.looks = self.watch.looks
        return self.survived


@contextmanager
def proof_job(
    folder: Path, options: Mapping[str, str], spark: Mapping[str, str]
) -> Iterator[Scene]:
    """The proof job, running, with its feeder and its checkers."""
    with (
        running_broker(folder / "broker") as broker,
        Client(broker.address, PATIENT) as client,
        kill_test(
            folder,
            broker,
            job=proof(NAMES),
            program=Path(str(proof_pipeline.__file__)),
            options={**_JOB, **options},
            environment={"PROOF_JOB": NAMES.job, **spark},
        ) as run,
    ):
        make_topics(client, NAMES)
        checkers = Checkers.of(client, NAMES)
        scene = Scene(
            run, ProofFeeder(broker.address, NAMES), checkers, Watch(checkers), Survived()
        )
        run.start_driver()
        run.await_epoch(1)
        scene.feeder.start()
        scene.watch.start()
        yield scene


@pytest.mark.parametrize(
    ("options", "spark", "strikes"),
    [
        pytest.param({}, {}, STRIKES, id="local"),
        pytest.param(_CLUSTER, _SPARK, ON_A_CLUSTER, id="cluster"),
    ],
)
def test_whatever_dies_or_stands_still_every_result_is_there_once(
    tmp_path: Path,
    options: Mapping[str, str],
    spark: Mapping[str, str],
    strikes: Mapping[str, Strike],
) -> None:
    chance = seeded()
    begin = time.monotonic()
    with proof_job(tmp_path, options, spark) as scene:
        while time.monotonic() < begin + 60 * MINUTES:
            kind = chance.choice(sorted(strikes))
            scene.strike(kind, strikes[kind], chance)
        survived = scene.finish()
        survived.seconds = time.monotonic() - begin
    print(survived, flush=True)
    assert survived.strikes
