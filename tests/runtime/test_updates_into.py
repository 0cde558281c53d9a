"""Updates, running or of windows, into everything that can stand behind them."""

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
    Topology,
    TopologyError,
    TopologyTestDriver,
    serdes,
    session,
    sliding,
    tumbling,
    value_state,
)
from tests.runtime.windowing import EPOCH, ms

TEN = ms(10)


class Given(NamedTuple):
    """What a shape may use."""

    #: Sums by key, as they change.
    updates: Stream[str, int]
    #: Another stream, with a record of each key.
    other: Stream[str, int]


Into = Callable[[Given], Any]


class Last(Processor[str, int, str, int]):
    """Gives every value that differs from the last one."""

    def init(self, context: Context) -> None:
        self.context, self.last = context, context.value("last")

    def process(self, record: Record[str, int]) -> None:
        if self.last.get() != record.value:
            self.last.put(record.value)
            self.context.forward(record)


SOURCES: dict[str, Callable[[Stream[str, int]], Stream[str, int]]] = {
    "running": lambda events: events.group_by_key().sum(emit="update", name="sums").to_stream(),
    "window": lambda events: (
        events.group_by_key().window(tumbling(TEN)).sum(emit="update", name="sums").to_stream()
    ),
}


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


WORKS: dict[str, Into] = {
    "sink": lambda of: of.updates,
    "map": lambda of: of.updates.map_values(lambda value: -value),
    "aggregate": lambda of: of.updates.key_by(lambda value: "all").sum(name="total").to_stream(),
    "extreme": lambda of: of.updates.key_by(lambda value: "all").max(name="most").to_stream(),
    "groups": lambda of: of.updates.key_by(lambda value: value % 3).count(name="n").to_stream(),
    "merge": lambda of: (
        of.updates.merge(of.other).key_by(lambda value: "all").sum(name="total").to_stream()
    ),
    "join of last values": lambda of: of.updates.outer_join(of.other).apply(pair),
    "as the right side": lambda of: of.other.left_join(of.updates).apply(pair),
    "stream with table": lambda of: of.updates.left_join(of.other.to_table(), pair),
    "to a table": lambda of: of.updates.to_table().to_stream(),
    "table with table": lambda of: (
        of.updates.to_table().outer_join(of.other.to_table(), pair).to_stream()
    ),
    "process": lambda of: of.updates.process(Last, states=[value_state("last", serdes.json)]),
}
BY_TIME: dict[str, Into] = {
    "window": lambda of: of.updates.group_by_key().window(tumbling(TEN)).count().to_stream(),
    "session": lambda of: of.updates.group_by_key().window(session(TEN)).count().to_stream(),
    "sliding": lambda of: of.updates.group_by_key().window(sliding(TEN)).count().to_stream(),
    "interval join": lambda of: of.updates.join(of.other).within(TEN).apply(pair),
    "its right side": lambda of: of.other.join(of.updates).within(TEN).apply(pair),
    "window join": lambda of: of.other.join(of.updates).window(tumbling(TEN)).apply(pair),
    "session join": lambda of: of.updates.join(of.other).window(session(TEN)).apply(pair),
    "window behind a join": lambda of: (
        of.updates.join(of.other)
        .apply(pair)
        .group_by_key()
        .window(session(TEN))
        .count()
        .to_stream()
    ),
}
BEHIND: dict[str, Into] = {
    "join of last values": lambda of: of.updates.join(of.other).apply(pair),
    "stream with table": lambda of: of.updates.join(of.other.to_table(), pair),
    "table": lambda of: of.updates.to_table().to_stream(),
    "table with table": lambda of: (
        of.updates.to_table().join(of.other.to_table(), pair).to_stream()
    ),
}


def built(source: str, into: Into) -> Topology:
    builder = StreamBuilder("updates")
    events, other = (
        builder.source(
            topic, serdes.with_key(serdes.json(int), of=str), allowed_lateness=ms(10_000)
        )
        for topic in ("events", "other")
    )
    other.sink("others", serdes.json)
    into(Given(SOURCES[source](events), other)).sink("out", serdes.plain)
    return builder.build()


def last_values(topology: Topology, size: int) -> dict[Any, Any]:
    """Give the last value of each key, with batches of a size."""
    with TopologyTestDriver(topology) as driver:
        events, other = (driver.input(topic, serdes.json) for topic in ("events", "other"))
        for number, key in enumerate("abc"):
            other.send(number, key=key, time=EPOCH)
        for first in range(0, 36, size):
            with driver.batch():
                for number in range(first, first + size):
                    time = EPOCH + ms(number * 7 % 40)
                    events.send(number % 5 + 1, key="abcd"[number % 4], time=time)
        found = driver.output("out", serdes.optional(serdes.plain)).read_all()
        last = {record.key: record.value for record in found}
        # A key that is gone again may not have come at all.
        return {key: value for key, value in last.items() if value is not None}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("into", WORKS)
def test_last_values_do_not_depend_on_how_updates_are_cut(source: str, into: str) -> None:
    topology = built(source, WORKS[into])
    whole = last_values(topology, 36)
    assert whole
    assert last_values(topology, 1) == whole
    assert last_values(topology, 9) == whole


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("into", BY_TIME)
def test_what_goes_by_time_refuses_updates(source: str, into: str) -> None:
    with pytest.raises(TopologyError, match=r"goes by the time(.|\n)*'sums'(.|\n)*emits updates"):
        built(source, BY_TIME[into])


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("through", BEHIND)
def test_aggregates_refuse_updates_that_come_without_old_values(source: str, through: str) -> None:
    def counted(of: Given) -> Any:
        return BEHIND[through](of).key_by(lambda value: "all").count(name="all").to_stream()

    with pytest.raises(TopologyError, match=r"'all'(.|\n)*'sums'(.|\n)*keeps no old results"):
        built(source, counted)


@pytest.mark.parametrize("through", BEHIND)
def test_aggregates_take_joins_of_results_per_record(through: str) -> None:
    builder = StreamBuilder("each")
    events, other = (
        builder.source(topic, serdes.with_key(serdes.json(int), of=str))
        for topic in ("events", "other")
    )
    other.sink("others", serdes.json)
    sums = events.group_by_key().sum(emit="each", name="sums").to_stream()
    behind = BEHIND[through](Given(sums, other)).key_by(lambda value: "all")
    behind.count(name="all").to_stream().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("other", serdes.json).send(0, key="a")
        with driver.batch():
            for number in range(5):
                driver.input("events", serdes.json).send(number, key="a")
        assert driver.state("all").get("all") == 5
