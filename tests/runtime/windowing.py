"""What tests of windows share: a pipeline, its input cut into batches, and a brute-force model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st

from headrace import (
    KeyedStream,
    Stream,
    StreamBuilder,
    Topology,
    TopologyTestDriver,
    WindowedTable,
    serdes,
)
from headrace.topology import Source

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ms(length: int) -> timedelta:
    return timedelta(milliseconds=length)


class Event(NamedTuple):
    key: str
    value: int
    time: int
    queue: int = 0


def event_lists(keys: str) -> st.SearchStrategy[list[Event]]:
    """Make events of some keys, out of order, in two queues."""
    one = st.builds(
        Event,
        st.sampled_from(keys),
        st.integers(-5, 5),
        st.integers(-60, 60),
        st.integers(0, 1),
    )
    return st.lists(one, max_size=40)


#: Where batches end.
CUTS = st.lists(st.integers(0, 40), max_size=8)


class Fired(NamedTuple):
    key: str
    value: Any
    start: int
    end: int
    time: int


@dataclass
class Outcome:
    results: list[Fired] = field(default_factory=list)
    late: list[tuple[str, Any, int]] = field(default_factory=list)
    #: Entries in the state store at the end.
    state: int = 0


Gather = Callable[[KeyedStream[Any, Any]], WindowedTable[Any, Any, Any]]


def with_lateness(topology: Topology, lateness: int) -> Topology:
    operators = tuple(
        replace(one, allowed_lateness=ms(lateness)) if isinstance(one, Source) else one
        for one in topology.operators
    )
    return replace(topology, operators=operators)


def pipeline(gather: Gather, lateness: int = 0) -> tuple[Topology, str]:
    builder = StreamBuilder("windows")
    events: Stream[Any, Any] = builder.source("events", serdes.with_key(serdes.json))
    table = gather(events.group_by_key())
    table.sink("results", serdes.json)
    if "count_window" not in table.name:
        table.late().sink("late", serdes.json)
    return with_lateness(builder.build(), lateness), table.name


def in_batches(events: Sequence[Event], cuts: Sequence[int]) -> list[Sequence[Event]]:
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(events)}), len(events)]
    return [events[start:end] for start, end in itertools.pairwise(bounds)]


def one_each(events: Sequence[Event]) -> list[Sequence[Event]]:
    return [[event] for event in events]


def run(
    gather: Gather,
    batches: Sequence[Sequence[Event]],
    *,
    lateness: int = 0,
    queues: int = 1,
    partitions: int = 2,
) -> Outcome:
    topology, name = pipeline(gather, lateness)
    with TopologyTestDriver(topology, partitions=partitions, queues={"events": queues}) as driver:
        inputs = [driver.input("events", serdes.json, queue=n) for n in range(queues)]
        for batch in batches:
            with driver.batch():
                for event in batch:
                    inputs[event.queue].send(
                        event.value, key=event.key, time=EPOCH + ms(event.time)
                    )
        return Outcome(
            [
                Fired(
                    record.key,
                    record.value,
                    int(record.headers["window_start_time"]),
                    int(record.headers["window_end_time"]),
                    (record.time - EPOCH) // ms(1),
                )
                for record in driver.output("results", serdes.json).read_all()
            ],
            [
                (record.key, record.value, (record.time - EPOCH) // ms(1))
                for sink in topology.sinks
                if sink.name == "sink-late"
                for record in driver.output("late", serdes.json).read_all()
            ],
            len(driver.state(name)),
        )


@dataclass
class Watched:
    """Events that are not late, those that are, and how far the operator's time came."""

    live: list[Event]
    late: list[tuple[str, Any, int]]
    reached: int | None


def watch(events: Sequence[Event], *, lateness: int, grace: int, queues: int) -> Watched:
    """Follow the rules of time for the whole input: late by its own queue, lowest queue wins."""
    marks: dict[int, int] = {}
    found = Watched([], [], None)
    for event in events:
        before = marks.get(event.queue)
        if before is not None and event.time + grace < before:
            found.late.append((event.key, event.value, event.time))
        else:
            found.live.append(event)
        own = event.time - lateness
        marks[event.queue] = own if before is None else max(before, own)
    if len(marks) == queues:
        found.reached = min(marks.values())
    return found


def fixed_windows(
    watched: Watched, *, size: int, slide: int, offset: int, grace: int
) -> list[Fired]:
    """Give all windows that have passed, from the whole input at once."""
    gathered: dict[tuple[str, int], list[Event]] = {}
    for event in watched.live:
        start = (event.time - offset) // slide * slide + offset
        while start + size > event.time:
            gathered.setdefault((event.key, start), []).append(event)
            start -= slide
    return sorted(
        Fired(key, sum(e.value for e in own), start, start + size, max(e.time for e in own))
        for (key, start), own in gathered.items()
        if watched.reached is not None and start + size + grace <= watched.reached
    )


def sessions(watched: Watched, *, gap: int, grace: int) -> list[Fired]:
    """Give all sessions that have passed, from the whole input at once."""
    runs: dict[str, list[list[Event]]] = {}
    for event in sorted(watched.live, key=lambda event: event.time):
        own = runs.setdefault(event.key, [])
        if own and event.time - own[-1][-1].time <= gap:
            own[-1].append(event)
        else:
            own.append([event])
    return sorted(
        Fired(key, sum(e.value for e in one), one[0].time, one[-1].time + gap, one[-1].time)
        for key, own in runs.items()
        for one in own
        if watched.reached is not None and one[-1].time + gap + grace < watched.reached
    )
