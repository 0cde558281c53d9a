"""The proof job on Spark: running, fed, and looked at."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.client import Client
from tests.faults.harness import PATIENT, Brokers, KillTest, kill_test
from tests.faults.proof_feeder import ProofFeeder, make_topics
from tests.faults.proof_fronts import Checkers, Front, Watch, job_of, program_of
from tests.faults.proof_pipeline import Names
from tests.faults.strikes import PATIENCE_SECONDS, Strike, Survived

NAMES = Names("proof")

_JOB = {
    "--partitions": "2",
    "--max-records-per-batch": "120",
    "--request-timeout": f"{PATIENCE_SECONDS} s",
}


@dataclass
class Scene:
    """A job that runs, what feeds it, and what looks at it."""

    run: KillTest
    feeder: ProofFeeder
    checkers: Checkers
    watch: Watch
    survived: Survived

    def begin(self) -> None:
        """Feed and look from now on."""
        self.feeder.start()
        self.watch.start()

    def strike(self, kind: str, strike: Strike, chance: random.Random) -> None:
        """Let one process fail at a random moment, and wait until the job goes on."""
        self.run.await_batches(1)
        time.sleep(chance.uniform(0.0, 1.0))
        print(f"{kind}, after epoch and batch {self.run.standing()}", flush=True)
        strike(self.run, chance)
        self.survived.strikes[kind] += 1
        self.run.await_batches(1)
        assert not self.watch.problems, self.watch.problems

    def finish(self) -> Survived:
        """Let the job catch up, end it, and look at everything."""
        sent = self.feeder.stop()
        self.run.await_caught_up()
        assert self.run.driver.stop() == 0, self.run.driver.said
        self.watch.stop()
        assert self.checkers.finish(sent) == []
        self.survived.epochs, self.survived.batches = self.run.standing()
        self.survived.records = sent.messages
        self.survived.looks = self.watch.looks
        self.survived.repeats = self.checkers.repeats()
        return self.survived


@contextmanager
def proof_job(
    folder: Path,
    brokers: AbstractContextManager[Brokers],
    options: Mapping[str, str],
    environment: Mapping[str, str],
    front: Front = "streams",
) -> Iterator[Scene]:
    """The proof job with its first driver; feeder and checkers wait for :meth:`Scene.begin`."""
    with (
        brokers as broker,
        Client(broker.address, PATIENT) as client,
        kill_test(
            folder,
            broker,
            job=job_of(NAMES, front),
            program=program_of(front),
            options={**_JOB, **options},
            environment={"PROOF_JOB": NAMES.job, **environment},
        ) as run,
    ):
        make_topics(client, NAMES)
        checkers = Checkers.of(client, NAMES, front)
        scene = Scene(
            run, ProofFeeder(broker.address, NAMES), checkers, Watch(checkers), Survived()
        )
        run.start_driver()
        run.await_epoch(1)
        yield scene
