"""What a batch of one record costs as a job gets wider: bytes that tasks are told, and time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise

from benchmarks.clusters import embedded
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import FULL
from benchmarks.word_count import commits
from headrace import StreamBuilder, Topology, serdes, tumbling
from headrace.client import Admin, Client, Message, Producer
from headrace.settings import JobSettings
from headrace.spark import StreamJob
from tests.faults.local_driver import LocalDriver

__all__ = ["batch_bytes", "batch_seconds", "job_topics", "send_one", "wide_batches"]

#: Batches in which workers start.
_WARM_UP = 2
#: Between two records: the next one waits before a batch has ended.
_PAUSE = 0.02


@benchmark(
    {f"batch_of_one_{width}": "s" for width in FULL.widths}
    | {f"batch_of_one_{width}_bytes": "bytes" for width in FULL.widths}
)
def wide_batches(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Count a word per window over as many queues and partitions."""
    for _ in range(plan.runs):
        found: dict[str, float] = {}
        for width in plan.sizes.widths:
            found[f"batch_of_one_{width}_bytes"] = batch_bytes(width)
            found[f"batch_of_one_{width}"] = batch_seconds(width, plan)
        yield found


def batch_bytes(width: int) -> int:
    """Count the bytes that all tasks of a batch of one record are told, or tell each other."""
    with embedded() as (address, folder), Client(address) as client:
        topology = job_topics(client, width)
        with LocalDriver(address, folder, job=topology, partitions=width) as driver:
            for _ in range(2):
                send_one(client)
                driver.passed_bytes = 0
                driver.catch_up()
            return driver.passed_bytes


def batch_seconds(width: int, plan: Plan) -> float:
    """Give the median time from one commit to the next on Spark, while records come one by one."""
    with embedded() as (address, folder), Client(address) as client:
        topology = job_topics(client, width)
        settings = JobSettings(namesrv=address, data_dir=folder, partitions=width)
        with StreamJob(topology, settings).start() as job:
            deadline = time.monotonic() + plan.sizes.patience.total_seconds()
            most = _WARM_UP + plan.sizes.wide_batches
            while job.statistics().batch <= most:
                assert time.monotonic() < deadline, f"only {job.statistics().batch} batches"
                send_one(client)
                time.sleep(_PAUSE)
        times = [record.timestamp for record in commits(client, topology)]
    steady = times[_WARM_UP:]
    steps = [later - earlier for earlier, later in pairwise(steady)]
    return statistics.median(steps) / 1000


def job_topics(client: Client, width: int) -> Topology:
    """Make topics of so many queues, and a job that counts a word per window from one to another."""
    for topic in ("events", "counts"):
        Admin(client).create_topic(topic, queues=width)
    builder = StreamBuilder("wide")
    words = builder.source("events", serdes.string, idle_timeout=None).key_by(str.lower)
    counts = words.window(tumbling(timedelta(seconds=1))).count(emit="update")
    counts.sink("counts", serdes.json)
    return builder.build()


def send_one(client: Client) -> None:
    """Send a record to such a job."""
    Producer(client).send(Message(topic="events", body=b"word"))
