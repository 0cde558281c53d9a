"""A job of 1,024 partitions: what a batch says of itself, and that it commits."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import msgspec
import pytest

from headrace import StreamBuilder, Topology, serdes, tumbling
from headrace.protocol.transactions import StagedPart
from headrace.runtime.commit.journal.publishing import counted_once, totals as totals_of
from tests.clusters import Cluster
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig

PARTITIONS = 1024
WORDS = [f"word-{number}" for number in range(300)]


def topology(lines: str, totals: str, recent: str) -> Topology:
    builder = StreamBuilder(f"wide-{lines}")
    words = builder.source(lines, serdes.string, idle_timeout=None).key_by(str.lower)
    words.count(name="total").to_stream().sink(totals, serdes.json)
    by_second = words.window(tumbling(timedelta(seconds=1)))
    by_second.count(name="recent", emit="update").to_stream().sink(recent, serdes.json)
    return builder.build()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_job_of_many_partitions_commits(rig: Rig, cluster: Cluster) -> None:
    lines = rig.topic(queues=8)
    totals, recent = rig.topic(queues=PARTITIONS), rig.topic(queues=16)
    rig.send(lines, WORDS)
    job = topology(lines, totals, recent)
    journal = cluster.kind == "rocketmq"
    with LocalDriver(
        rig.namesrv, rig.folder, 10_000, job=job, partitions=PARTITIONS, journal=journal
    ) as driver:
        assert driver.catch_up() == 1
        rig.send(lines, WORDS[:1])
        driver.passed_bytes = 0
        assert driver.catch_up() == 1
        # Two stages of 1,024 tasks hear of a batch that brings one record.
        assert driver.passed_bytes < 2_000_000
        record = driver.record
        assert len(msgspec.json.encode(record)) < 500_000
        states = Counter(state.store for state in record.states)
    assert rig.latest(totals) == {word: 1 + (word == WORDS[0]) for word in WORDS}
    assert len(rig.read(recent)) == len(WORDS) + 1
    assert min(states.values()) > 200


def test_a_commit_says_once_how_much_goes_to_each_queue() -> None:
    counts = {f"counts@broker-a@{number}": 1 for number in range(PARTITIONS)}
    parts = [
        StagedPart(stage=1, partition=n, attempt=n, chunks=1, records=PARTITIONS, counts=counts)
        for n in range(PARTITIONS)
    ]
    stored = counted_once(parts)
    assert totals_of(stored) == totals_of(parts)
    assert len(msgspec.json.encode(stored)) < 200_000
