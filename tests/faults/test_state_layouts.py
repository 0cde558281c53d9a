"""State of every kind of operator: rescaled while windows are open, looked into, kept in files."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace import (
    Processor,
    Record,
    count,
    count_window,
    event_timer,
    hopping,
    list_state,
    map_state,
    serdes,
    session,
    sliding,
    sum_,
    tumbling,
    value_state,
    window_state,
)
from headrace.errors import StateError
from headrace.runtime.jobs.reset import exported, import_state, rescale
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.views import CommittedState
from headrace.serdes import Deserializer, Keyed
from headrace.streams import GlobalTable, KeyedStream, Stream, StreamBuilder, Table
from headrace.topology import Context, Fired, Topology
from tests.faults.local_driver import LocalDriver
from tests.spark.pipelines import Rig

SECOND = timedelta(seconds=1)
BASE = 1_700_000_000_000
KEYS = [f"key-{number}" for number in range(12)]


@dataclass
class Value:
    """What the records say."""

    k: str
    n: int
    t: int


class Everything(Processor[Any, Any, Any, Any]):
    """Uses a state of each kind, and a timer."""

    def init(self, context: Context) -> None:
        self.context = context
        self.last = context.value("last")
        self.seen = context.map("seen")
        self.all = context.list("all")
        self.times = context.window("times")

    def process(self, record: Record[Any, Any]) -> None:
        number = record.value.n
        self.seen.put(number % 3, number)
        self.all.append(number)
        self.times.put(record.time, number)
        found = [self.last.get(), dict(self.seen.items()), list(self.all)]
        self.last.put(number)
        self.context.timer("later").set(record.time + 4 * SECOND)
        before = [value for _, value in self.times.before(record.time)]
        self.context.forward(record.with_value([*map(str, found), before]))

    def fire(self, fired: Fired[Any]) -> None:
        self.context.forward(Record(fired.key, ["fired", self.last.get()], fired.time))


@dataclass
class Inputs:
    """What the operators are built on."""

    left: KeyedStream[str, Any]
    right: KeyedStream[str, Any]
    rows: Table[str, Any]
    others: Table[str, Any]
    everywhere: GlobalTable[str, Any]
    #: Of the operator.
    name: str = "op"


Build = Callable[[Inputs], Stream[Any, Any]]


def windowed(windows: Any) -> Build:
    return lambda given: given.left.window(windows).count(name=given.name).to_stream()


def pair(left: Any, right: Any) -> list[Any]:
    return [left and left.n, right and right.n]


def processed(given: Inputs) -> Stream[Any, Any]:
    states = [
        value_state("last", serdes.int),
        map_state("seen"),
        list_state("all", ttl=40 * SECOND),
        window_state("times", ttl=8 * SECOND),
    ]
    return given.left.process(
        Everything, states=states, timers=[event_timer("later")], name=given.name
    )


#: By the class of the operator whose state it is; some have several kinds.
OPERATORS: dict[str, dict[str, Build]] = {
    "Aggregate": {"count": lambda given: given.left.count(name=given.name).to_stream()},
    "AggregateColumns": {
        "columns": lambda given: (
            given.left.group_by("k").agg(count(), total=sum_("n"), name=given.name).to_stream()
        )
    },
    "TimeWindow": {
        "tumbling": windowed(tumbling(10 * SECOND)),
        "hopping": windowed(hopping(10 * SECOND, 5 * SECOND)),
        "window_columns": lambda given: (
            given.left.group_by("k")
            .window(tumbling(10 * SECOND))
            .agg(total=sum_("n"), name=given.name)
            .to_stream()
        ),
    },
    "SlidingWindow": {"sliding": windowed(sliding(4 * SECOND))},
    "SessionWindow": {"session": windowed(session(3 * SECOND))},
    "CountWindow": {"count_window": windowed(count_window(7))},
    "LatestJoin": {
        "latest": lambda given: given.left.left_join(given.right).apply(pair, name=given.name)
    },
    "IntervalJoin": {
        "interval": lambda given: (
            given.left.outer_join(given.right).within(4 * SECOND).apply(pair, name=given.name)
        )
    },
    "WindowJoin": {
        "window_join": lambda given: (
            given.left.outer_join(given.right)
            .window(tumbling(5 * SECOND))
            .apply(pair, name=given.name)
        )
    },
    "SessionJoin": {
        "session_join": lambda given: (
            given.left.outer_join(given.right)
            .window(session(3 * SECOND))
            .apply(pair, name=given.name)
        )
    },
    "KeepTable": {"table": lambda given: given.left.to_table(name=given.name).to_stream()},
    "StreamTableJoin": {
        "lookup": lambda given: given.left.left_join(given.rows).apply(pair, name=given.name)
    },
    "GlobalTableJoin": {
        "everywhere": lambda given: (
            given.left.left_join(given.everywhere)
            .left_key(lambda value: KEYS[value.n % len(KEYS)])
            .apply(pair, name=given.name)
        )
    },
    "TableJoin": {
        "tables": lambda given: given.rows.outer_join(
            given.others, pair, name=given.name
        ).to_stream()
    },
    "ForeignKeyJoin": {
        "foreign_key": lambda given: given.rows.left_join(
            given.others,
            pair,
            foreign_key=lambda row: KEYS[row.n % len(KEYS)],
            name=given.name,
        ).to_stream()
    },
    "KeyedProcess": {"process": processed},
}
KINDS = {kind: build for builds in OPERATORS.values() for kind, build in builds.items()}


class ByName(Deserializer[str, Value]):
    """Reads the key from the body."""

    key_hint = str
    value_hint = Value
    value_serde = serdes.json(Value)

    def deserialize(self, body: bytes, properties: Mapping[str, str]) -> Keyed[str, Value]:
        value = serdes.json(Value).deserialize(body)
        return Keyed(value.k, value)


class Jobs:
    """Jobs that do the same over the same topics: operators of all kinds, a topic for each."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.topics = rig.topic(queues=1), rig.topic(queues=1)
        self._sent = 0

    def topology(self, name: str, outs: dict[str, str]) -> Topology:
        builder = StreamBuilder(f"{name}-{self.topics[0]}")

        def grouped(topic: str) -> KeyedStream[str, Any]:
            stream = builder.source(
                topic,
                serdes.json(Value),
                timestamp=lambda value: value.t,
                allowed_lateness=2 * SECOND,
            )
            return stream.key_by(lambda value: value.k)

        left, right = map(grouped, self.topics)
        given = Inputs(
            left,
            right,
            right.to_table(name="rows"),
            left.to_table(name="others"),
            builder.global_table(self.topics[1], ByName(), name="rows-everywhere"),
        )
        for kind, build in KINDS.items():
            build(replace(given, name=kind)).sink(outs[kind], serdes.json, name=f"sink-{kind}")
        return builder.build()

    def outs(self) -> dict[str, str]:
        return {kind: self.rig.topic(queues=1) for kind in KINDS}

    def send(self) -> None:
        """Send the next records: some keys, in the order of time."""
        for topic, seed in zip(self.topics, (0, 100), strict=True):
            rng = random.Random(seed + self._sent)
            start = BASE + self._sent * 18_000
            values = [
                {"k": rng.choice(KEYS), "n": number, "t": start + number * 300}
                for number in range(60)
            ]
            self.rig.send(topic, map(json.dumps, values))
        self._sent += 1

    def run(self, job: Topology, partitions: int) -> None:
        with LocalDriver(
            self.rig.namesrv, self.rig.folder, batch_size=200, job=job, partitions=partitions
        ) as driver:
            driver.catch_up()

    def home(self, job: Topology) -> StateHome:
        return StateHome.of(job.name, self.rig.client)


@pytest.mark.slow
def test_results_are_the_same_with_rescales_and_a_way_through_files(rig: Rig) -> None:
    jobs = Jobs(rig)
    outs = jobs.outs(), jobs.outs()
    still, moved = jobs.topology("still", outs[0]), jobs.topology("moved", outs[1])
    for part, partitions in enumerate((2, 3, 2)):
        jobs.send()
        if part:
            rescale(jobs.home(moved), partitions)
        if partitions == 3:
            through_files(jobs.home(moved))
        jobs.run(still, 2)
        jobs.run(moved, partitions)
    for kind in KINDS:
        expected, found = (Counter(rig.read(each[kind])) for each in outs)
        assert expected == found, kind
        assert len(expected) >= len(KEYS), kind


def through_files(home: StateHome) -> None:
    """Write all state to lines, empty the stores, and bring it back."""
    for store in home.record().stores:
        with CommittedState(home, store) as view:
            kept = list(exported(view))
            assert len(kept) == len(view), store
        import_state(home, store, [])
        assert import_state(home, store, kept) == len(kept)


def test_open_state_is_shown_by_key(rig: Rig) -> None:
    jobs = Jobs(rig)
    job = jobs.topology("shown", jobs.outs())
    jobs.send()
    jobs.run(job, 2)
    for kind in (*KINDS, "rows", "foreign_key-requests", "foreign_key-rows"):
        if kind != "foreign_key":
            check_shown(jobs.home(job), job, kind)


def check_shown(home: StateHome, job: Topology, kind: str) -> None:
    with CommittedState(home, kind, job.operator(kind)) as view:
        shown = list(view.scan())
        assert shown, kind
        assert {entry.key for entry in shown} <= set(KEYS)
        assert not any(isinstance(entry.value, bytes) for entry in shown), kind
        last = shown[-1]
        assert view.get(last.key) is not None, kind
        assert view.get("nobody") is None, kind
        if last.start is not None:
            span = (datetime.fromtimestamp((BASE + s * 20_000) / 1000, UTC) for s in (-1, 1))
            found = list(view.window(last.key, *span))
            mine = [
                (e.start, e.end, e.value)
                for e in shown
                if e.key == last.key and e.start is not None
            ]
            assert sorted(found, key=str) == sorted(mine, key=str)


def test_state_of_a_processor_is_shown_as_it_was_declared(rig: Rig) -> None:
    jobs = Jobs(rig)
    job = jobs.topology("declared", jobs.outs())
    jobs.send()
    jobs.run(job, 2)
    with CommittedState(jobs.home(job), "process", job.operator("process")) as view:
        state = view.all()[KEYS[0]]
        assert state.keys() == {"last", "seen", "all", "times"}
        assert state["all"][-1] == state["last"]
        assert state["seen"] == {number % 3: number for number in state["all"]}
    with CommittedState(jobs.home(job), "process") as view:
        assert view.get(KEYS[0]) == state
    with CommittedState(
        jobs.home(job), "foreign_key-rows", job.operator("foreign_key-rows")
    ) as view:
        told = [view.get(key) for key in KEYS]
    assert any(found and found.keys() == {"left", "right"} for found in told)


def test_every_stateful_operator_is_among_those_above() -> None:
    stateful = {kind for kind in PROCESSORS if kind.stateful and kind.__module__.startswith("head")}
    # State of spouts and bolts: tests/transactions/test_restarts.py.
    components = {"KeyValueBoltNode", "Spout", "StatefulBoltNode"}
    names = {kind.__name__ for kind in stateful} - components
    assert names == {*OPERATORS, "ForeignKeyRequests"}
    assert all(PROCESSORS[kind].layout is not None for kind in stateful)


def test_state_without_a_layout_is_refused_before_anything_changes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(rig)
    job = jobs.topology("none", jobs.outs())
    jobs.send()
    jobs.run(job, 2)
    home = jobs.home(job)
    epoch = home.record().epoch
    monkeypatch.setattr(PROCESSORS[type(job.operator("tumbling"))], "layout", None)
    with pytest.raises(StateError, match="does not say which keys"):
        rescale(home, 5)
    assert home.record().epoch == epoch
