"""Records without a key: what each operator does with them, and that they are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from headrace import (
    Context,
    Processor,
    Record,
    Stream,
    StreamBuilder,
    TopologyTestDriver,
    count_window,
    hopping,
    serdes,
    session,
    sliding,
    tumbling,
    value_state,
)
from tests.runtime.windowing import EPOCH, ms

TEN = ms(10)


class Given(NamedTuple):
    left: Stream[Any, int]
    right: Stream[Any, int]
    builder: StreamBuilder


class Counts(Processor[Any, int, Any, int]):
    """Numbers the records of each key."""

    def init(self, context: Context) -> None:
        self.context, self.count = context, context.value("count")

    def process(self, record: Record[Any, int]) -> None:
        self.count.put((self.count.get() or 0) + 1)
        self.context.forward(Record(record.key, self.count.get(), record.time))


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


Shape = Callable[[Given], Any]
SKIPS: dict[str, Shape] = {
    "running": lambda of: of.left.group_by_key().count().to_stream(),
    "each": lambda of: of.left.group_by_key().sum(emit="each").to_stream(),
    "custom": lambda of: of.left.group_by_key().reduce(max).to_stream(),
    "tumbling": lambda of: of.left.group_by_key().window(tumbling(TEN)).sum().to_stream(),
    "hopping": lambda of: of.left.group_by_key().window(hopping(TEN, ms(5))).max().to_stream(),
    "session": lambda of: of.left.group_by_key().window(session(TEN)).sum().to_stream(),
    "sliding": lambda of: of.left.group_by_key().window(sliding(TEN)).sum().to_stream(),
    "count": lambda of: of.left.group_by_key().window(count_window(1)).sum().to_stream(),
    "table": lambda of: of.left.to_table().to_stream(),
    "latest": lambda of: of.left.join(of.right).apply(pair),
    "interval": lambda of: of.left.join(of.right).within(TEN).apply(pair),
    "window": lambda of: of.left.join(of.right).window(tumbling(TEN)).apply(pair),
    "joined session": lambda of: of.left.join(of.right).window(session(TEN)).apply(pair),
    "lookup": lambda of: of.left.join(of.right.to_table(), pair),
    "tables": lambda of: of.left.to_table().join(of.right.to_table(), pair).to_stream(),
}
ALONE: dict[str, Shape] = {
    "latest": lambda of: of.left.left_join(of.right).apply(pair),
    "interval": lambda of: of.left.left_join(of.right).within(TEN).apply(pair),
    "window": lambda of: of.left.left_join(of.right).window(tumbling(TEN)).apply(pair),
    "session": lambda of: of.left.left_join(of.right).window(session(TEN)).apply(pair),
    "lookup": lambda of: of.left.left_join(of.right.to_table(), pair),
}
PASSES: dict[str, Shape] = {
    "map": lambda of: of.left.map_values(lambda value: value),
    "repartition": lambda of: of.left.repartition(),
    "merge": lambda of: of.left.merge(of.right.where(lambda value: False)),
}


def given(shape: Shape) -> tuple[list[tuple[Any, Any]], int]:
    """Give the results, and what was counted, when both sides have a record without a key."""
    builder = StreamBuilder("keyless")
    left, right = (
        builder.source(topic, serdes.with_key(serdes.json(int), of=object))
        for topic in ("left", "right")
    )
    right.sink("rights", serdes.json)
    shape(Given(left, right, builder)).sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        for topic in ("right", "left"):
            driver.input(topic, serdes.json).send(1, time=EPOCH)
        out = driver.output("out", serdes.plain)
        assert all(len(driver.state(store)) == 0 for store in driver.topology.state_topics)
        for topic in ("right", "left"):
            driver.input(topic, serdes.json).send(2, key="k", time=EPOCH)
            driver.input(topic, serdes.json).send(0, key=f"last-{topic}", time=EPOCH + ms(100_000))
        found = [(r.key, r.value) for r in out.read_all()]
        return found, driver.counters.get("null_keys", 0)


@pytest.mark.parametrize("shape", SKIPS)
def test_records_without_a_key_are_skipped_and_counted(shape: str) -> None:
    found, counted = given(SKIPS[shape])
    assert {key for key, _ in found} <= {"k", "last-left", "last-right"}
    assert "k" in {key for key, _ in found}
    assert counted >= 1


@pytest.mark.parametrize("shape", ALONE)
def test_left_joins_give_them_alone_at_once(shape: str) -> None:
    found, counted = given(ALONE[shape])
    assert found.count((None, [1, None])) == 1
    assert counted == 1  # that of the right side, which nobody wants alone


@pytest.mark.parametrize("shape", PASSES)
def test_what_keeps_no_state_passes_them(shape: str) -> None:
    found, counted = given(PASSES[shape])
    assert (None, 1) in found
    assert counted == 0


def test_processors_take_no_key_for_a_key() -> None:
    states = [value_state("count", serdes.int)]
    builder = StreamBuilder("keyless")
    left = builder.source("left", serdes.with_key(serdes.json(int), of=object))
    counts: Any = left.process(Counts, states=states)
    counts.sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        for key in (None, "k", None):
            driver.input("left", serdes.json).send(1, key=key)
        found = driver.output("out", serdes.plain).read_all()
        assert [(r.key, r.value) for r in found] == [(None, 1), ("k", 1), (None, 2)]
