"""State of every kind of operator: rescaled while windows are open, and looked into."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import count_window, hopping, serdes, session, sliding, tumbling
from headrace.client import Client
from headrace.errors import StateError
from headrace.runtime.rescaling import rescale
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state_home import StateHome
from headrace.runtime.state_views import StateView
from headrace.streams import KeyedStream, Stream, StreamBuilder
from headrace.topology import Topology
from tests.clusters import Cluster
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig

SECOND = timedelta(seconds=1)
BASE = 1_700_000_000_000
KEYS = [f"key-{number}" for number in range(12)]

Grouped = KeyedStream[Any, Any]
Build = Callable[[Grouped, Grouped], Stream[Any, Any]]


def windowed(windows: Any) -> Build:
    return lambda left, _: left.window(windows).count(name="op").to_stream()


def pair(left: Any, right: Any) -> list[Any]:
    return [left and left["n"], right and right["n"]]


KINDS: dict[str, Build] = {
    "count": lambda left, _: left.count(name="op").to_stream(),
    "tumbling": windowed(tumbling(10 * SECOND)),
    "hopping": windowed(hopping(10 * SECOND, 5 * SECOND)),
    "sliding": windowed(sliding(4 * SECOND)),
    "session": windowed(session(3 * SECOND)),
    "count_window": windowed(count_window(7)),
    "latest": lambda left, right: left.left_join(right).apply(pair, name="op"),
    "interval": lambda left, right: (
        left.outer_join(right).within(4 * SECOND).apply(pair, name="op")
    ),
}


@pytest.fixture
def rig(cluster: Cluster, client: Client, make_topic: Callable[..., str], tmp_path: Path) -> Rig:
    return Rig(cluster.namesrv, client, tmp_path, make_topic)


def job_of(rig: Rig, build: Build, name: str, left: str, right: str, out: str) -> Topology:
    builder = StreamBuilder(name)

    def grouped(topic: str) -> Grouped:
        stream = builder.source(
            topic,
            serdes.json,
            timestamp=lambda value: value["t"],
            allowed_lateness=2 * SECOND,
        )
        return stream.key_by(lambda value: value["k"])

    lefts, rights = grouped(left), grouped(right)
    rights.count(name="others").to_stream().sink(rig.topic(), serdes.json)
    build(lefts, rights).sink(out, serdes.json)
    return builder.build()


def lines(seed: int, start: int) -> list[str]:
    rng = random.Random(seed)
    return [
        json.dumps({"k": rng.choice(KEYS), "n": number, "t": BASE + start + number * 300})
        for number in range(60)
    ]


def send(rig: Rig, left: str, right: str, part: int) -> None:
    for topic, seed in ((left, part), (right, 100 + part)):
        rig.send(topic, lines(seed, part * 18_000))


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_same_with_a_rescale_while_state_is_open(rig: Rig, kind: str) -> None:
    left, right = rig.topic(queues=1), rig.topic(queues=1)
    outs, names = [rig.topic(queues=1), rig.topic(queues=1)], [f"still-{left}", f"moved-{left}"]
    jobs = [
        job_of(rig, KINDS[kind], name, left, right, out)
        for name, out in zip(names, outs, strict=True)
    ]
    for part, partitions in enumerate((2, 5, 3)):
        send(rig, left, right, part)
        if part:
            rescale(StateHome.of(names[1], rig.client), partitions)
        for job, number in zip(jobs, (2, partitions), strict=True):
            with LocalDriver(
                rig.namesrv, rig.folder, batch_size=200, job=job, partitions=number
            ) as driver:
                driver.catch_up()
    still, moved = (Counter(rig.read(out)) for out in outs)
    assert still == moved
    assert len(still) >= len(KEYS)


@pytest.mark.parametrize("kind", KINDS)
def test_open_state_is_shown_by_key(rig: Rig, kind: str) -> None:
    left, right, out = rig.topic(queues=1), rig.topic(queues=1), rig.topic()
    job = job_of(rig, KINDS[kind], f"shown-{left}", left, right, out)
    send(rig, left, right, 0)
    with LocalDriver(rig.namesrv, rig.folder, batch_size=200, job=job) as driver:
        driver.catch_up()
    home = StateHome.of(job.name, rig.client)
    with StateView(home, "op", job.operator("op")) as view:
        shown = list(view.scan())
        assert shown
        assert {entry.key for entry in shown} <= set(KEYS)
        key = shown[-1].key
        assert view.get(key) is not None
        if shown[-1].start is not None:
            span = (datetime.fromtimestamp((BASE + s * 20_000) / 1000, UTC) for s in (-1, 1))
            found = list(view.window(key, *span))
            mine = [(e.start, e.end, e.value) for e in shown if e.key == key]
            assert sorted(found, key=str) == sorted(mine, key=str)


def test_every_stateful_operator_says_how_its_store_is_laid_out() -> None:
    without = {
        kind.__name__
        for kind, processor in PROCESSORS.items()
        if kind.stateful and processor.layout is None
    }
    # Tables and low-level processors: a command that would move their state refuses by name.
    refused = {
        "ForeignKeyJoin",
        "ForeignKeyRequests",
        "GlobalTableJoin",
        "KeepTable",
        "KeyedProcess",
        "StreamTableJoin",
        "TableJoin",
    }
    assert without - {"TumblingCount"} <= refused


def test_state_without_a_layout_is_refused_before_anything_changes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right, out = rig.topic(queues=1), rig.topic(queues=1), rig.topic()
    job = job_of(rig, KINDS["tumbling"], f"none-{left}", left, right, out)
    send(rig, left, right, 0)
    with LocalDriver(rig.namesrv, rig.folder, batch_size=200, job=job) as driver:
        driver.catch_up()
    home = StateHome.of(job.name, rig.client)
    epoch = home.record().epoch
    monkeypatch.setattr(PROCESSORS[type(job.operator("op"))], "layout", None)
    with pytest.raises(StateError, match="does not say which keys"):
        rescale(home, 5)
    assert home.record().epoch == epoch
