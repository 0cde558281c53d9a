"""Random topologies in the job's own source, stages and coordinator, over drivers that give up.

``MODEL_SEED=n python -m pytest tests/faults/test_model.py`` tries others.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client
from headrace.embedded import embedded_broker
from headrace.settings import JobSettings
from headrace.spark import SparkReplay
from headrace.topology import Topology
from tests.faults.local_driver import LocalDriver
from tests.faults.own_cluster import align, running_cluster
from tests.streams.model.brokers import without_brokers
from tests.streams.model.checking import arrived, check, messages
from tests.streams.model.inputs import QUEUES, Sent, ends
from tests.streams.model.jobs import FIXED, SEED, all_plans, merged, records
from tests.streams.model.joins import Interval
from tests.streams.model.plans import Plan, Windows


@pytest.mark.timeout(240)
@pytest.mark.parametrize("brokers", [1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_the_engine_gives_what_the_model_says_whoever_gives_up(
    brokers: int, tmp_path: Path
) -> None:
    print(f"MODEL_SEED={SEED}")
    number = SEED + brokers
    chance = random.Random(number)
    plans = all_plans(number)
    with scene(brokers, plans, number, tmp_path) as (topics, sent):
        made, client, address = topics.topology, topics.client, str(topics.settings.namesrv)
        more: dict[str, Any] = {"partitions": chance.choice([1, 2, 8])}
        for part in cut(sent, chance):
            topics.send(messages(part))
            give_up(made, address, tmp_path, chance, more)
        with LocalDriver(address, tmp_path, job=made, **more) as driver:
            driver.catch_up()
        check(topics, plans, arrived(client, made, sent), one_log=brokers == 1)


@pytest.mark.parametrize("brokers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_place_without_its_broker_is_found(brokers: int, tmp_path: Path) -> None:
    plans = [plan for plan in FIXED if isinstance(plan, Windows | Interval)]
    with scene(brokers, plans, brokers, tmp_path) as (topics, sent):
        made, client = topics.topology, topics.client
        topics.send(messages(sent))
        with (
            without_brokers(),
            LocalDriver(str(topics.settings.namesrv), tmp_path, 1000, job=made) as driver,
        ):
            driver.catch_up()
        with pytest.raises(AssertionError, match="Windows"):
            check(topics, plans, arrived(client, made, sent), one_log=False)


@contextmanager
def scene(
    brokers: int, plans: Sequence[Plan], number: int, folder: Path
) -> Iterator[tuple[SparkReplay, list[Sent]]]:
    """The topics of plans on so many brokers, and what is sent to them."""
    made = merged(plans, f"model-local-{number}")
    own = embedded_broker(folder) if brokers == 1 else running_cluster(folder / "brokers", brokers)
    with own as address, Client(address) as client:
        if brokers > 1:
            align(client)
        settings = JobSettings(namesrv=address, data_dir=folder)
        queues = {topic: -(-count // brokers) for topic, count in QUEUES.items()}
        with SparkReplay(client, made, settings, queues) as topics:
            more = {topic: range(QUEUES[topic], queues[topic] * brokers) for topic in QUEUES}
            yield topics, records(number) + ends(more)


def cut(sent: Sequence[Sent], chance: random.Random) -> list[Sequence[Sent]]:
    """Cut the input into parts, each for a driver of its own."""
    edges = sorted(chance.sample(range(1, len(sent)), 3))
    return [sent[begin:end] for begin, end in zip([0, *edges], [*edges, len(sent)], strict=True)]


def give_up(
    made: Topology, address: str, folder: Path, chance: random.Random, more: Mapping[str, Any]
) -> None:
    """Run a driver for some batches; the last one is staged and never committed."""
    size = chance.randint(5, 40)
    with LocalDriver(address, folder, size, job=made, **more) as driver:
        for _ in range(chance.randint(0, 3)):
            planned = driver.plan()
            if planned is None:
                return
            end = driver.process(planned)
            if chance.random() < 0.3:
                return
            driver.commit(end)
