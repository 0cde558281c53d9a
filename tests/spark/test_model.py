"""Random topologies on Spark: any batches, any number of partitions, restarts and kills.

``MODEL_SEED=n python -m pytest tests/spark/test_model.py`` tries other plans and records.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.client import Client, PullConsumer
from headrace.embedded import embedded_broker
from headrace.settings import Executor, JobSettings
from headrace.spark import SparkReplay
from headrace.topology import Topology
from tests.faults.harness import Driver, await_true
from tests.streams.model.checking import check, messages
from tests.streams.model.inputs import QUEUES
from tests.streams.model.jobs import SEED, all_plans, merged, records

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]


@contextmanager
def replaying(
    made: Topology, partitions: int = 2, executor: Executor = "micro-batch"
) -> Iterator[SparkReplay]:
    print(f"MODEL_SEED={SEED}")
    with tempfile.TemporaryDirectory(prefix="headrace-model-") as folder:
        path = Path(folder)
        with embedded_broker(path) as address, Client(address) as client:
            settings = JobSettings(
                namesrv=address,
                data_dir=path,
                partitions=partitions,
                master="local[2,4]",
                max_records_per_batch=40,
                executor=executor,
            )
            with SparkReplay(client, made, settings, QUEUES) as replay:
                yield replay


@pytest.mark.parametrize(
    ("partitions", "executor"),
    [(1, "resident"), (2, "micro-batch"), (2, "resident"), (8, "micro-batch"), (8, "resident")],
)
def test_spark_gives_what_the_model_says_in_any_batches_and_after_a_restart(
    partitions: int, executor: Executor
) -> None:
    chance = random.Random(SEED + partitions)
    plans, sent = all_plans(), records(SEED + partitions)
    first, second = sorted(chance.sample(range(1, len(sent)), 2))
    made = merged(plans, f"model-{partitions}")
    with replaying(made, partitions, executor) as replay:
        replay.start()
        replay.send(messages(sent[:first]))
        replay.await_done()
        replay.send(messages(sent[first:second]))
        # In the midst of a batch, or before it: what is not committed is done again.
        replay.stop()
        replay.start()
        replay.send(messages(sent[second:]))
        replay.await_done()
        check(replay, plans, sent)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("executor", ["micro-batch", "resident"])
def test_spark_gives_what_the_model_says_after_kills(executor: str, tmp_path: Path) -> None:
    plans, sent = all_plans(), records()
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "MODEL_SEED": str(SEED)}
    environment["HEADRACE_EXECUTOR"] = executor
    # It makes its plans where it is read: not in every process that collects tests.
    from tests.streams.model import program

    with replaying(program.topology) as replay:
        drivers: list[Driver] = []

        def start(failpoints: str) -> Driver:
            driver = Driver(
                str(replay.settings.namesrv),
                tmp_path / "job",
                tmp_path / f"{failpoints}.log",
                failpoints,
                program=Path(str(program.__file__)),
                environment=environment,
            )
            drivers.append(driver)
            return driver

        try:
            replay.send(messages(sent[:70]))
            # It dies with its second batch staged, but not committed.
            assert start("job.before_commit=kill:2").wait() == -signal.SIGKILL
            drivers[-1].clean_up()
            replay.send(messages(sent[70:]))
            # Each Python worker dies at its twentieth task: staged, but never reported.
            last = start("task.staged=kill:20")
            await_committed(replay, last)
            assert last.stop() == 0, last.said
            check(replay, plans, sent)
        finally:
            for driver in drivers:
                driver.clean_up()


def await_committed(replay: SparkReplay, driver: Driver) -> None:
    """Wait until a driver has committed all that is in the source topics."""
    consumer = PullConsumer(replay.client, replay.topology.name)
    queues = [queue for topic in QUEUES for queue in replay.client.queues(topic)]

    def done() -> bool:
        assert driver.runs(), f"the driver ended:\n{driver.said[-4000:]}"
        return all(consumer.committed(q) == consumer.end_offset(q) for q in queues)

    await_true("caught up", done)
