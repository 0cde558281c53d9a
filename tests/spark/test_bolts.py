"""Spouts and bolts on Spark: callbacks in workers, over failures that roll the batch back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.spark import StreamJob
from tests.clusters import Cluster
from tests.spark.pipelines import Rig
from tests.transactions.automaton import judge
from tests.transactions.traced import Count, KeyedCount, Sentences, Split, Trace, words_of
from tests.transactions.wiring import Wiring

pytestmark = pytest.mark.spark

LIMIT = 30
SPOUTS = 3


@pytest.mark.timeout(240)
def test_r15_to_r18_on_spark_after_failures_of_each_kind_of_component(
    cluster: Cluster, client: Client, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    trace = Trace(tmp_path)
    rig = Rig(cluster.namesrv, client, tmp_path / "job", make_topic)
    wiring = Wiring().spout("spout", Sentences(trace, LIMIT), SPOUTS, delay_ms=200, batch_size=5)
    wiring.bolt("split", Split(trace), ("spout", "local_or_shuffle"), tasks=2)
    wiring.bolt("count", Count(trace), ("split", "fields", ["word"]), tasks=2)
    wiring.bolt("keyed", KeyedCount(trace), ("split", "fields", ["word"]), tasks=2)
    job = wiring.build(make_topic(queues=1))
    trace.fail("count", "execute", 1)
    with StreamJob(job, rig.settings()).start() as running:
        wait_for(lambda: committed(running) >= 2)
        trace.fail("spout", "finish_batch", 2)
        wait_for(lambda: not (tmp_path / "spout-2-finish_batch").exists())
        (tmp_path / "count-refuse").touch()
        wait_for(lambda: emitted(running) == SPOUTS * LIMIT)
        last = committed(running)
        wait_for(lambda: committed(running) > last + 1)
        tasks = running.state("count").all()
        expected = {word: SPOUTS * count for word, count in words_of(LIMIT).items()}
        assert sum(map(Counter, tasks.values()), Counter()) == expected
        assert running.state("keyed").all() == expected
        last = committed(running)
    assert judge(trace.calls(), committed=last + 1) == []
    rolled = Counter(call.task for call in trace.calls() if call.name == "roll_back")
    # At least once for each of three failures; Spark may repeat a task in the first batch.
    stateful = [("spout", task) for task in range(SPOUTS)] + [("count", 0), ("count", 1)]
    assert set(rolled) == set(stateful)
    assert min(rolled.values()) >= 1


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)


def committed(job: StreamJob) -> int:
    # Raises where the job has failed.
    job.await_termination(timedelta(0))
    return job.statistics().batch


def emitted(job: StreamJob) -> int:
    committed(job)
    return sum(job.state("spout").all().values()) if job.statistics().batch else 0
