"""Random topologies on random records: the model that looks at everything says what comes out.

``MODEL_SEED=n MODEL_EXAMPLES=n python -m pytest tests/streams/test_model.py`` tries others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import (
    HealthCheck,
    example,
    given as with_data,
    note,
    seed,
    settings,
    strategies as st,
)

from headrace import StreamBuilder, Topology, TopologyTestDriver, serdes
from headrace.runtime import TestRecord
from headrace.serdes import TableDeserializer
from tests.streams.model.brokers import brokers_below, without_brokers
from tests.streams.model.inputs import QUEUES, Sent, given, plans, rows
from tests.streams.model.jobs import FIXED, records
from tests.streams.model.joins import Interval
from tests.streams.model.plans import FLUSH, Each, Merged, Plan, Record, Source, Steps, Windows

EPOCH = datetime.fromtimestamp(0, UTC)
KEYED = TableDeserializer(serdes.as_deserializer(serdes.with_key(serdes.json)))

Result = tuple[str, str, int]
"""Key, value and time."""


def topology(plan: Plan, name: str = "model") -> Topology:
    """Build a plan; sources that it does not read are read, too, so that they are there."""
    builder = StreamBuilder(name)
    plan.stream({}, builder).sink("out", serdes.json)
    return builder.build()


def expected(plan: Plan, sent: Sequence[Sent]) -> list[Result]:
    return compared(plan, [row for _, row in plan.expected(given(sent))])


def compared(plan: Plan, rows: Sequence[Record]) -> list[Result]:
    """Give all results in any order, or the last of each key where they replace earlier ones."""
    rows = [row for row in rows if row.key != FLUSH]
    if plan.updates:
        last = {row.key: row for row in rows}
        return sorted((k, repr(row.value), 0) for k, row in last.items() if row.value is not None)
    return sorted((row.key, repr(row.value), row.time) for row in rows)


def results(driver: TopologyTestDriver, plan: Plan) -> list[Result]:
    return compared(plan, [record(r) for r in driver.output("out", KEYED).read_all()])


def record(read: TestRecord[Any, Any]) -> Record:
    return Record(read.key, read.value, (read.time - EPOCH) // timedelta(milliseconds=1))


def run(
    plan: Plan, sent: Sequence[Sent], edges: Sequence[int], partitions: int, brokers: int = 1
) -> list[Result]:
    made = topology(plan)
    topics = {topic for source in made.sources for topic in source.topics}
    with (
        brokers_below(brokers) if brokers > 1 else nullcontext(),
        TopologyTestDriver(made, partitions=partitions, queues=QUEUES) as driver,
    ):
        for begin, end in zip([0, *edges], [*edges, len(sent)], strict=True):
            with driver.batch():
                for one in sent[begin:end]:
                    if one.topic in topics:
                        send(driver, one)
        return results(driver, plan)


def send(driver: TopologyTestDriver, one: Sent) -> None:
    way: Any = driver.input(one.topic, serdes.json, queue=one.queue)
    way.send(one.value, key=one.key, time=EPOCH + timedelta(milliseconds=one.time))


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, length), max_size=6).map(sorted)


SEED = int(os.environ.get("MODEL_SEED", "0"))
EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "80"))


@seed(SEED)
@settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@example(plan=Windows(Merged(Source("a"), Source("b")), "count", 50, 20), sent=[], data=None)
@example(
    plan=Each(Merged(Steps(Source("a"), ("map",)), Source("a")), "sum"),
    sent=[Sent("a", 0, "x", 1, 0), Sent("a", 0, "x", 2, 0)],
    data=None,
)
@with_data(plan=plans(), sent=rows(), data=st.data())
def test_the_driver_gives_what_the_model_says_however_batches_are_cut(
    plan: Plan, sent: list[Sent], data: st.DataObject | None
) -> None:
    note(f"again: MODEL_SEED={SEED} MODEL_EXAMPLES={EXAMPLES}")
    wanted = expected(plan, sent)
    assert run(plan, sent, [], partitions=1) == wanted
    if data is not None:
        edges = data.draw(cuts(len(sent)), label="batches end at")
        partitions, brokers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
        assert run(plan, sent, edges, partitions, brokers) == wanted


@pytest.mark.parametrize("brokers", [2, 3])
def test_a_place_without_its_broker_is_found(brokers: int) -> None:
    sent = records()
    edges = range(10, len(sent), 30)
    found = set()
    for plan in FIXED:
        wanted = expected(plan, sent)
        assert run(plan, sent, edges, 2, brokers) == wanted, plan
        with without_brokers():
            if run(plan, sent, edges, 2, brokers) != wanted:
                found.add(type(plan))
    assert found >= {Windows, Interval}
