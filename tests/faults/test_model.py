"""Random topologies in the job's own source, stages and coordinator, over drivers that give up.

``MODEL_SEED=n python -m pytest tests/faults/test_model.py`` tries others.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.embedded import embedded_broker
from headrace.settings import JobSettings
from headrace.spark import SparkReplay
from headrace.topology import Topology
from tests.faults.local_driver import LocalDriver
from tests.streams.model.checking import check, messages
from tests.streams.model.inputs import QUEUES, Sent
from tests.streams.model.jobs import SEED, all_plans, merged, records


@pytest.mark.timeout(240)
@pytest.mark.parametrize("number", [SEED + more for more in range(1, 4)])
def test_the_engine_gives_what_the_model_says_whoever_gives_up(number: int, tmp_path: Path) -> None:
    print(f"MODEL_SEED={number - 1}")
    chance = random.Random(number)
    plans, sent = all_plans(number), records(number)
    made = merged(plans, f"model-local-{number}")
    with embedded_broker(tmp_path) as address, Client(address) as client:
        settings = JobSettings(namesrv=address, data_dir=tmp_path)
        with SparkReplay(client, made, settings, QUEUES) as topics:
            partitions = chance.choice([1, 2, 8])
            for part in cut(sent, chance):
                topics.send(messages(part))
                give_up(made, address, tmp_path, chance, partitions)
            with LocalDriver(address, tmp_path, job=made, partitions=partitions) as driver:
                driver.catch_up()
            check(topics, plans, sent)


def cut(sent: Sequence[Sent], chance: random.Random) -> list[Sequence[Sent]]:
    """Cut the input into parts, each for a driver of its own."""
    edges = sorted(chance.sample(range(1, len(sent)), 3))
    return [sent[begin:end] for begin, end in zip([0, *edges], [*edges, len(sent)], strict=True)]


def give_up(
    made: Topology, address: str, folder: Path, chance: random.Random, partitions: int
) -> None:
    """Run a driver for some batches; the last one is staged and never committed."""
    size = chance.randint(5, 40)
    with LocalDriver(address, folder, size, job=made, partitions=partitions) as driver:
        for _ in range(chance.randint(0, 3)):
            planned = driver.plan()
            if planned is None:
                return
            end = driver.process(planned)
            if chance.random() < 0.3:
                return
            driver.commit(end)
