"""Topologies of spouts and bolts on Spark, from the builder to the topics."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import TransactionJob, serdes
from headrace.client import Admin, Client
from headrace.topology import Tuple
from headrace.transactions import (
    TopicSink,
    TopicSpout,
    TransactionTopology,
    TransactionTopologyBuilder,
)
from tests.clusters import Cluster
from tests.spark.pipelines import LIMIT, Rig
from tests.transactions.components import KeyCount, Numbers, Pass

pytestmark = pytest.mark.spark


class Fussy(Pass):
    """Passes words on; as long as a file is there, it fails instead."""

    def __init__(self, fuse: Path) -> None:
        super().__init__()
        self.fuse = fuse

    def execute(self, taken: Tuple, /) -> None:
        if self.fuse.exists():
            message = "not today"
            raise RuntimeError(message)
        super().execute(taken)


@pytest.fixture
def rig(embedded: Cluster, tmp_path: Path) -> Iterator[Rig]:
    numbers = itertools.count(1)
    with Client(embedded.namesrv) as client:

        def make(queues: int = 2) -> str:
            name = f"test-transactions-{os.getpid()}-{next(numbers)}-{tmp_path.name}"
            Admin(client).create_topic(name, queues=queues)
            return name

        yield Rig(embedded.namesrv, client, tmp_path, make)


#: Two queries start at once, each with processes of its own.
PATIENCE = 150.0


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def bodies(rig: Rig, topic: str) -> Counter[bytes]:
    return Counter(body for _, body in rig.read(topic))


@pytest.mark.timeout(300)
def test_a_group_rolls_back_alone(rig: Rig, tmp_path: Path) -> None:
    """R33: while b fails again and again, a goes on, and b loses and repeats nothing."""
    fuse = tmp_path / "fuse"
    fuse.touch()
    topics = {name: (rig.topic(), rig.topic()) for name in "ab"}
    builder = TransactionTopologyBuilder(f"two-{topics['a'][0]}")
    for name, bolt in (("a", Pass()), ("b", Fussy(fuse))):
        read, written = topics[name]
        builder.set_spout(name, TopicSpout(read, serdes.string, fields=["word"]))
        builder.set_bolt(f"pass-{name}", bolt, 2).shuffle_grouping(name)
        sink = TopicSink(written, serdes.string)
        builder.set_sink(f"out-{name}", sink).shuffle_grouping(f"pass-{name}")
    rig.send(topics["b"][0], ["be"] * 10)
    with TransactionJob(builder.build(), rig.settings()).start() as job:
        a, b = job.jobs.values()
        wait_for(lambda: b.statistics().restarts >= 1)
        for _ in range(2):
            rig.send(topics["a"][0], ["to"] * 10)
            a.await_caught_up(LIMIT)
        assert bodies(rig, topics["a"][1]) == {b"to": 20}
        assert bodies(rig, topics["b"][1]) == {}
        assert a.statistics().restarts == 0
        assert b.statistics().batch == 0
        fuse.unlink()
        job.await_caught_up(LIMIT)
        assert job.failures == {}
    assert bodies(rig, topics["a"][1]) == {b"to": 20}
    assert bodies(rig, topics["b"][1]) == {b"be": 10}


def counting(name: str, lines: str, counts: str, **config: object) -> TransactionTopology:
    builder = TransactionTopologyBuilder(
        name, {key.replace("_", "."): value for key, value in config.items()}
    )
    builder.set_spout("lines", TopicSpout(lines, serdes.string, fields=["word"]))
    builder.set_bolt("count", KeyCount(), 2).fields_grouping("lines", "word")
    sink = TopicSink(counts, serdes.json, key_field="word")
    builder.set_sink("out", sink).fields_grouping("count", "word")
    return builder.build()


@pytest.mark.timeout(300)
def test_a_topology_that_is_reset_begins_anew(rig: Rig) -> None:
    """R31: with the flag, offsets and state are dropped; without it, they are kept."""
    lines, counts = rig.topic(), rig.topic()
    name = f"reset-{lines}"
    rig.send(lines, ["be"] * 5 + ["or"] * 3)
    batches: list[int] = []
    for flag in (True, False, True):
        topology = counting(name, lines, counts, transaction_topology_reset=flag)
        with TransactionJob(topology, rig.settings()).start() as job:
            job.await_caught_up(LIMIT)
            assert job.state("count").all() == {"be": 5, "or": 3}
            batches.append(job.statistics().batch)
    # Read and counted from the beginning twice, each time from nothing.
    once = [*(("be", n) for n in range(1, 6)), *(("or", n) for n in range(1, 4))]
    assert Counter((key, int(body)) for key, body in rig.read(counts)) == Counter(once * 2)
    # Numbers of batches go on.
    assert batches[2] > batches[1]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["exactly_once", "at_least_once"])
def test_numbers_by_offset_come_once_in_both_modes(rig: Rig, mode: str) -> None:
    """R5 and R38: the same program; without faults no mode repeats anything."""
    out = rig.topic()
    config = {
        "transaction.exactly.once.mode": mode == "exactly_once",
        "tuple.num.per.batch": 4,
        "transaction.schedule.batch.delay.ms": 50,
    }
    builder = TransactionTopologyBuilder(f"numbers-{out}", config)
    builder.set_spout("spout", Numbers(10))
    builder.set_bolt("pass", Pass("number"), 2).local_or_shuffle_grouping("spout")
    builder.set_sink("out", TopicSink(out, serdes.json)).shuffle_grouping("pass")
    with TransactionJob(builder.build(), rig.settings()).start() as job:
        wait_for(lambda: len(rig.read(out)) >= 10)
        last = job.statistics().batch
        wait_for(lambda: job.statistics().batch >= last + 2)
        assert job.state("spout").get(0) == 10
    assert bodies(rig, out) == {str(number).encode(): 1 for number in range(10)}
