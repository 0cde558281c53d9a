"""What tests of joins share: streams of small records, any cut into batches, and a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st

from headrace import StreamBuilder, serdes
from headrace.runtime import TopologyTestDriver
from headrace.topology import Topology

START = datetime(2024, 1, 1, tzinfo=UTC)
BASE = int(START.timestamp() * 1000)
LATENESS = 2000
#: Key and time of the records that bring event time past everything.
LAST_KEY, LAST_TIME = "last", 10_000_000


class Event(NamedTuple):
    """A record of one side."""

    side: str
    key: str
    value: int
    #: ms after the start.
    time: int


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def both(key: Any, left: Any, right: Any) -> list[Any]:
    return [key, left, right]


def joined(make: Callable[[Any, Any], Any]) -> Topology:
    """A topology of two sources, joined by what a test says, into the topic ``out``."""
    builder = StreamBuilder("joins")
    left = builder.source("left", serdes.with_key(serdes.json, of=object))
    right = builder.source("right", serdes.with_key(serdes.json, of=object))
    make(left, right).sink("out", serdes.json)
    return builder.build()


def cut(events: Sequence[Event], sizes: Iterable[int]) -> list[list[Event]]:
    """Cut events into batches of the sizes, over and over."""
    batches: list[list[Event]] = []
    at, sizes = 0, list(sizes)
    while at < len(events):
        size = sizes[len(batches) % len(sizes)]
        batches.append(list(events[at : at + size]))
        at += size
    return batches


def feed(driver: TopologyTestDriver, batches: Iterable[Sequence[Event]]) -> None:
    inputs: dict[str, Any] = {}
    for batch in batches:
        with driver.batch():
            for event in batch:
                if event.side not in inputs:
                    inputs[event.side] = driver.input(event.side, serdes.json)
                inputs[event.side].send(event.value, key=event.key, time=START + ms(event.time))


def results(
    topology: Topology, batches: Iterable[Sequence[Event]], partitions: int = 2
) -> list[tuple[Any, int]]:
    """Give each result with its time, ms after the start."""
    with TopologyTestDriver(topology, partitions=partitions, start=START) as driver:
        feed(driver, batches)
        return given(driver)


def given(driver: TopologyTestDriver) -> list[tuple[Any, int]]:
    records = driver.output("out", serdes.json).read_all()
    return [(record.value, round((record.time - START) / ms(1))) for record in records]


def ended(events: Sequence[Event]) -> list[Event]:
    """Put records behind that bring event time past everything."""
    return [
        *events,
        Event("left", LAST_KEY, -1, LAST_TIME),
        Event("right", LAST_KEY + "!", -1, LAST_TIME),
    ]


def in_time(events: Sequence[Event]) -> list[Event]:
    """Leave out the records that are late by the queue that they came by."""
    newest: dict[str, int] = {}
    kept = []
    for event in events:
        if event.time >= newest.get(event.side, event.time) - LATENESS:
            kept.append(event)
        newest[event.side] = max(event.time, newest.get(event.side, event.time))
    return kept


def counted(rows: Iterable[tuple[Any, int]]) -> Counter[str]:
    """Count results, leaving out those of the last records."""
    return Counter(repr(row) for row in rows if not str(row[0][0]).startswith(LAST_KEY))


@st.composite
def event_lists(draw: st.DrawFn, span: int = 20_000, most: int = 30) -> list[Event]:
    """Draw records of two sides and three keys, out of order, some of them late."""
    moments = draw(st.lists(st.integers(0, span), max_size=most))
    return [
        Event(
            draw(st.sampled_from(["left", "right"])),
            draw(st.sampled_from(["a", "b", "c"])),
            number,
            moment if draw(st.integers(0, 3)) else moment // 1000 * 1000,
        )
        for number, moment in enumerate(_nearly_sorted(draw, moments))
    ]


def _nearly_sorted(draw: st.DrawFn, moments: list[int]) -> list[int]:
    shifted = [(moment + draw(st.integers(-3000, 3000)), moment) for moment in moments]
    return [moment for _, moment in sorted(shifted)]


cuts = st.lists(st.integers(1, 8), min_size=1, max_size=4)
