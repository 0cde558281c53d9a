"""Random topologies on random records: the model that looks at everything says what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, example, settings
from hypothesis import given as with_data
from hypothesis import strategies as st

from headrace import StreamBuilder, Topology, TopologyTestDriver, serdes
from tests.streams.model.inputs import QUEUES, Sent, given, plans, rows
from tests.streams.model.plans import FLUSH, Each, Merged, Plan, Source, Steps, Windows

EPOCH = datetime.fromtimestamp(0, UTC)
KEYED = serdes.with_key(serdes.json)

Result = tuple[str, str, int]
"""Key, value and time."""


def topology(plan: Plan, name: str = "model") -> Topology:
    """Build a plan; sources that it does not read are read, too, so that they are there."""
    builder = StreamBuilder(name)
    plan.stream({}, builder).sink("out", serdes.json)
    return builder.build()


def expected(plan: Plan, sent: Sequence[Sent]) -> list[Result]:
    found = [row for _, row in plan.expected(given(sent)) if row.key != FLUSH]
    return sorted((row.key, repr(row.value), row.time) for row in found)


def results(driver: TopologyTestDriver) -> list[Result]:
    found = [r for r in driver.output("out", KEYED).read_all() if r.key != FLUSH]
    return sorted(
        (r.key, repr(r.value), (r.time - EPOCH) // timedelta(milliseconds=1)) for r in found
    )


def run(
    made: Topology, sent: Sequence[Sent], edges: Sequence[int], partitions: int
) -> list[Result]:
    topics = {topic for source in made.sources for topic in source.topics}
    with TopologyTestDriver(made, partitions=partitions, queues=QUEUES) as driver:
        for begin, end in zip([0, *edges], [*edges, len(sent)], strict=True):
            with driver.batch():
                for one in sent[begin:end]:
                    if one.topic in topics:
                        send(driver, one)
        return results(driver)


def send(driver: TopologyTestDriver, one: Sent) -> None:
    way: Any = driver.input(one.topic, serdes.json, queue=one.queue)
    way.send(one.value, key=one.key, time=EPOCH + timedelta(milliseconds=one.time))


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, length), max_size=6).map(sorted)


@settings(
    max_examples=60,
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
    made, wanted = topology(plan), expected(plan, sent)
    assert run(made, sent, [], partitions=1) == wanted
    if data is not None:
        edges = data.draw(cuts(len(sent)), label="batches end at")
        assert run(made, sent, edges, data.draw(st.integers(1, 4))) == wanted
