"""Jobs on Spark that read what they wrote themselves, on both kinds of cluster."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from headrace import TopologyTestDriver, serdes, tumbling
from headrace.client import Admin
from headrace.spark import StreamJob, assert_same_on_spark
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.runtime import test_through as in_driver
from tests.runtime.windowing import Event
from tests.spark.pipelines import LIMIT, Rig

pytestmark = pytest.mark.spark

SECOND = timedelta(seconds=1)


def sums(events: str, results: str) -> Topology:
    """Sums of [key, value, second] by key and second, through one topic and then another."""
    builder = StreamBuilder(f"through-{events}")
    read = builder.source(
        events, serdes.json, timestamp=lambda e: e[2] * 1000, allowed_lateness=timedelta(0)
    )
    keyed = read.through(serde=serdes.json).key_by(lambda e: e[0]).through(serde=serdes.json)
    table = keyed.window(tumbling(SECOND)).sum(lambda e: e[1])
    table.to_stream().sink(results, serdes.json)
    return builder.build()


def send(rig: Rig, topic: str, seconds: range) -> None:
    """Three events of each second: two keys, one of them twice."""
    events = [[key, second, second] for second in seconds for key in "aba"]
    rig.send(topic, [json.dumps(event) for event in events])


def expected(seconds: range) -> list[tuple[Any, bytes]]:
    sums = [("a", 2 * second) for second in seconds] + [("b", second) for second in seconds]
    return sorted((key, str(total).encode()) for key, total in sums)


def test_windows_behind_two_topics_are_exact_over_a_restart(rig: Rig) -> None:
    events, results = rig.topic(queues=1), rig.topic(queues=2)
    topology = sums(events, results)
    first, second = range(1, 40), range(40, 60)
    with StreamJob(topology, rig.settings()).start() as job:
        send(rig, events, first)
        job.await_caught_up(LIMIT)
        # The last second is still open: all others are there when the job has caught up.
        assert sorted(rig.read(results)) == expected(first[:-1])
        batch = job.statistics().batch
        job.await_caught_up(LIMIT)
        assert job.statistics().lag == 0
        assert job.statistics().batch <= batch + 1
    with StreamJob(topology, rig.settings()).start() as job:
        send(rig, events, second)
        job.await_caught_up(LIMIT)
    assert sorted(rig.read(results)) == expected(range(1, 59))
    topics = set(Admin(rig.client).topics())
    assert {through.topic for through in topology.throughs} <= topics


def test_spark_gives_what_the_test_driver_gives() -> None:
    events = [Event("ab"[n % 2], n, (7 * n) % 50, n % 2) for n in range(40)]
    ends = [Event("end", 0, 10_000, number) for number in range(2)]
    topology = in_driver.windows(in_driver.twice)
    with TopologyTestDriver(topology, queues={"events": 2}) as driver:
        in_driver.send(driver, [*events, *ends], [13, 30])
        assert_same_on_spark(driver)
