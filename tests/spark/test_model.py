"""Random topologies on Spark: any batches, any number of partitions, and a job that is restarted."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import serdes
from headrace.client import Client
from headrace.embedded import embedded_broker
from headrace.runtime.testing import TestInput
from headrace.runtime.testing.topics import Sent as Message
from headrace.settings import JobSettings
from headrace.spark import SparkReplay
from headrace.topology import Topology
from tests.streams.model.inputs import QUEUES, Sent
from tests.streams.model.plans import (
    FLUSH,
    FLUSH_VALUE,
    Each,
    Interval,
    Last,
    Merged,
    Plan,
    Sessions,
    Source,
    Steps,
    Twice,
    Windows,
)
from tests.streams.test_model import EPOCH, KEYED, Result, expected, topology

pytestmark = pytest.mark.spark

A, B = Source("a"), Source("b")
MERGED = Steps(Merged(A, Steps(B, ("flat_map",))), ("filter",))

#: What the random plans of the driver's test are made of, each once, and what feeds what.
PLANS: dict[str, Plan] = {
    "each": Each(Steps(MERGED, ("key_by",)), "sum"),
    "windows-of-windows": Windows(Windows(MERGED, "count", 50, 20, 15), "sum", 100, 100),
    "sessions-beside-windows": Twice(Sessions(MERGED, "sum", 30), Windows(MERGED, "sum", 50, 50)),
    "interval": Interval(Steps(A, ("key_by",)), Steps(B, ("key_by",)), "outer_join", 10, 45, 15),
    "window-with-stream": Interval(Windows(A, "sum", 50, 50), B, "left_join", 45, 45),
    "last": Last(A, Steps(B, ("map",)), "left_join"),
}


def records(chance: random.Random, count: int = 60) -> list[Sent]:
    """Make records whose times wander on, with strays, and the ends of all queues."""
    sent = []
    for number in range(count):
        topic = chance.choice(sorted(QUEUES))
        time = max(0, 6 * number + chance.randint(-60, 20))
        queue, key = chance.randrange(QUEUES[topic]), chance.choice("xyz")
        sent.append(Sent(topic, queue, key, chance.randint(0, 9), time))
    ends = [Sent(t, q, FLUSH, FLUSH_VALUE, 1_000_000) for t in QUEUES for q in range(QUEUES[t])]
    return sent + ends


@contextmanager
def replaying(made: Topology, partitions: int) -> Iterator[SparkReplay]:
    with tempfile.TemporaryDirectory(prefix="headrace-model-") as folder:
        path = Path(folder)
        with embedded_broker(path) as address, Client(address) as client:
            settings = JobSettings(
                namesrv=address,
                data_dir=path,
                partitions=partitions,
                master="local[2,4]",
                max_records_per_batch=25,
            )
            topics = {topic for source in made.sources for topic in source.topics}
            queues = {topic: QUEUES[topic] for topic in topics}
            with SparkReplay(client, made, settings, queues) as replay:
                yield replay


def messages(made: Topology, sent: Sequence[Sent]) -> list[Message]:
    topics = {topic for source in made.sources for topic in source.topics}
    taken: list[Message] = []
    for one in sent:
        if one.topic in topics:
            time = EPOCH + timedelta(milliseconds=one.time)
            way: Any = TestInput(one.topic, serdes.json, one.queue, taken.extend, datetime.now)
            way.send(one.value, key=one.key, time=time)
    return taken


def results(replay: SparkReplay) -> list[Result]:
    reader = serdes.as_deserializer(KEYED)
    found = [message.read(reader) for message in replay.read()["out"]]
    return sorted(
        (record.key, repr(record.value), (record.time - EPOCH) // timedelta(milliseconds=1))
        for record in found
        if record.key != FLUSH
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("name", "partitions"), list(zip(PLANS, [1, 2, 8, 2, 1, 8], strict=True)))
def test_spark_gives_what_the_model_says_also_after_a_restart(name: str, partitions: int) -> None:
    chance = random.Random(name)
    plan = PLANS[name]
    made, sent = topology(plan, f"model-{name}"), records(chance)
    first, second = sorted(chance.sample(range(1, len(sent)), 2))
    with replaying(made, partitions) as replay:
        replay.start()
        replay.send(messages(made, sent[:first]))
        replay.await_done()
        replay.send(messages(made, sent[first:second]))
        # In the midst of a batch, or before it: what is not committed is done again.
        replay.stop()
        replay.start()
        replay.send(messages(made, sent[second:]))
        replay.await_done()
        assert results(replay) == expected(plan, sent)
