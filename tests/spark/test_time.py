"""Event time, silent queues, starts and topics that join, in jobs on Spark and the broker."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import serdes
from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, Client, Producer
from headrace.errors import OffsetExpiredError, SettingsError
from headrace.spark import StreamJob
from headrace.streams import StreamBuilder
from headrace.topology import Topology
from tests.clusters import Cluster
from tests.faults.harness import await_true
from tests.spark.pipelines import LIMIT, Rig, tumbling_counts

pytestmark = pytest.mark.spark

SECOND = timedelta(seconds=1)


@pytest.fixture
def rig(embedded: Cluster, tmp_path: Path) -> Iterator[Rig]:
    with Client(embedded.namesrv) as client:

        def make(name: str, queues: int = 1) -> str:
            Admin(client).create_topic(name, queues=queues)
            return name

        yield Rig(embedded.namesrv, client, tmp_path, make)


@contextmanager
def running(rig: Rig, topology: Topology) -> Iterator[StreamJob]:
    job = StreamJob(topology, rig.settings()).start()
    try:
        yield job
    finally:
        job.stop()


def await_values(rig: Rig, topic: str, expected: list[str]) -> None:
    deadline = time.monotonic() + 30
    while (found := sorted(body.decode() for _, body in rig.read(topic))) != sorted(expected):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def send(rig: Rig, topic: str, queue: int, texts: Iterable[str]) -> None:
    """Send each text with the second that it names as its time: ``a@12``."""
    queues = sorted(rig.client.queues(topic, for_="write"))
    producer = Producer(rig.client)
    for text in texts:
        producer.send_columns(
            queues[queue],
            pa.array([text.partition("@")[0].encode()], pa.binary()),
            born=int(text.partition("@")[2]) * 1000,
        )


@pytest.mark.slow
def test_a_silent_queue_lets_windows_fire_without_another_message(rig: Rig) -> None:
    events, counts = rig.topic("quiet", queues=2), rig.topic("quiet-counts")
    topology = tumbling_counts("quiet-job", events, counts, idle_timeout=6 * SECOND)
    send(rig, events, 0, ["a@1", "a@2", "b@31"])
    send(rig, events, 1, ["a@3"])
    with running(rig, topology) as job:
        job.await_caught_up(LIMIT)
        time.sleep(2)
        send(rig, events, 0, ["b@32"])
        # Queue 1 is silent first; then a batch without data tells.
        await_values(rig, counts, ["3"])
        batch = job.statistics().batch
        time.sleep(8)
        # Nothing is due any more, though now both queues are silent.
        assert job.statistics().batch == batch


def test_watermarks_survive_a_restart(rig: Rig) -> None:
    events, counts = rig.topic("kept", queues=2), rig.topic("kept-counts")
    topology = tumbling_counts("kept-job", events, counts, idle_timeout=None)
    send(rig, events, 0, ["a@1", "b@31"])
    send(rig, events, 1, ["a@5"])
    with running(rig, topology) as job:
        job.await_caught_up(LIMIT)
        assert rig.read(counts) == []
    # Queue 0 says nothing more: what it said before the restart counts.
    send(rig, events, 1, ["c@12"])
    with running(rig, topology) as job:
        job.await_caught_up(LIMIT)
        await_values(rig, counts, ["2"])


def copies(name: str, source: str | re.Pattern[str], target: str, **options: object) -> Topology:
    builder = StreamBuilder(name)
    builder.source(source, serdes.string, **options).sink(target, serdes.string)  # type: ignore[call-overload]
    return builder.build()


def test_new_queues_and_new_topics_join_a_running_job(rig: Rig) -> None:
    first, out = rig.topic("joining-a"), rig.topic("joined")
    topology = copies("join-job", re.compile("joining-.*"), out, start="latest")
    rig.send(first, ["before the job"])
    with running(rig, topology) as job:
        rig.send(first, ["1"])
        await_values(rig, out, ["1"])
        rig.topic(first, queues=3)
        rig.send(first, ["2", "3", "4"])
        second = rig.topic("joining-b")
        rig.send(second, ["5"])
        await_values(rig, out, ["1", "2", "3", "4", "5"])
        assert job.statistics().restarts == 0
    third = rig.topic("joining-c")
    rig.send(third, ["6"])
    rig.run(topology)
    await_values(rig, out, ["1", "2", "3", "4", "5", "6"])


def test_a_job_starts_where_its_source_says(rig: Rig) -> None:
    source = rig.topic("starts")
    rig.send(source, ["0", "1"])
    time.sleep(0.01)
    moment = datetime.now(UTC)
    rig.send(source, ["2", "3"])

    def read(start: object, **more: object) -> list[str]:
        out = rig.topic(f"starts-out-{len(found)}")
        found.append(out)
        topology = copies(f"starts-job-{len(found)}", source, out, start=start, **more)
        with running(rig, topology) as job:
            job.await_caught_up(LIMIT)
        return [body.decode() for _, body in rig.read(out)]

    found: list[str] = []
    assert read("first") == ["0", "1", "2", "3"]
    assert read(moment) == ["2", "3"]
    assert read({0: 3}) == ["3"]
    assert read("latest") == []
    with pytest.raises(SettingsError, match="queue 1, which does not exist"):
        read({1: 3})
    with pytest.raises(OffsetExpiredError, match="ends at 4"):
        read({0: 5})


def test_a_start_holds_once_or_every_time(rig: Rig) -> None:
    source, once, always = rig.topic("again"), rig.topic("again-once"), rig.topic("again-always")
    rig.send(source, ["0", "1", "2"])
    runs: list[Callable[[], None]] = [
        lambda: rig.run(copies("once-job", source, once, start={0: 1})),
        lambda: rig.run(copies("always-job", source, always, start={0: 1}, start_once=False)),
    ]
    for run in runs * 2:
        run()
    await_values(rig, once, ["1", "2"])
    await_values(rig, always, ["1", "2", "1", "2"])


def test_a_running_job_stops_where_retention_was_quicker(tmp_path: Path) -> None:
    settings = BrokerSettings(segment_size=4000, retention=None, retention_size=12_000)
    go_on = tmp_path / "go on"
    with (
        EmbeddedBroker(tmp_path / "broker", settings=settings) as broker,
        Client(broker.address) as client,
    ):
        rig = Rig(broker.address, client, tmp_path, str)
        for topic in ("long", "short"):
            Admin(client).create_topic(topic, queues=1)
        for _ in range(6):
            rig.send("long", [400 * "x"] * 10)
        builder = StreamBuilder("behind")
        kept = builder.source("long", serdes.string).where(lambda _: _is_there(go_on))
        kept.map_values(len).sink("short", serdes.json)
        job = StreamJob(builder.build(), rig.settings(max_records_per_batch=10)).start()
        try:
            await_true("the first batch runs", (tmp_path / "waits").exists)
            store = broker._server._running().store
            store.expire()
            first = store.bounds("long", 0).min_offset
            go_on.touch()
            with pytest.raises(OffsetExpiredError, match=f"first offset is {first}: {first - 10} "):
                job.await_termination(LIMIT)
            assert job.statistics().restarts == 0
        finally:
            job.stop()
        assert len(rig.read("short")) == 10


def _is_there(path: Path) -> bool:
    (path.parent / "waits").touch()
    while not path.exists():
        time.sleep(0.01)
    return True
