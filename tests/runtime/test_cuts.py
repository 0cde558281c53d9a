"""Results do not depend on how records are cut into batches: operators times cuts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from headrace import (
    StreamBuilder,
    Topology,
    TopologyTestDriver,
    avg,
    count,
    max_,
    min_,
    serdes,
    sum_,
)
from headrace.columns import col, if_else
from headrace.runtime import TestRecord
from headrace.topology import Accumulator
from headrace.topology.windows import count_window, hopping, session, sliding, tumbling
from tests.runtime.windowing import EPOCH, ms

QUEUES = {"a": 2, "b": 1}


@dataclass
class Reading:
    key: str
    n: int


@dataclass(frozen=True)
class Sent:
    topic: str
    queue: int
    key: str
    n: int
    time: int


def readings(seed: int) -> list[Sent]:
    """Make records of three queues of two topics, out of order, and some that close windows."""
    chance, time = random.Random(seed), 0
    queues = [(topic, queue) for topic, count in QUEUES.items() for queue in range(count)]
    found: list[Sent] = []
    for n in range(36):
        time += chance.randint(0, 10)
        at = max(0, time - chance.randint(0, 20))
        found.append(Sent(*chance.choice(queues), chance.choice("kl"), n, at))
    return found + [Sent(*queue, "end", n, 10_000) for n, queue in enumerate(queues)]


SENT = readings(seed=1)
CUTS: dict[str, Iterable[int]] = {
    "each alone": range(1, len(SENT)),
    "two": [len(SENT) // 3],
    "four": [5, 17, 18],
}


class Grown(Accumulator[int, list[int]]):
    """Gives as its result what it goes on to change."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add(self, value: int) -> None:
        self.numbers.append(value)

    def remove(self, value: int) -> None:
        self.numbers.remove(value)

    def result(self) -> list[int]:
        return self.numbers


def grown(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Change the first argument; the order of records matters, and how they are put together."""
    left["n"] = (left["n"] * 31 + right["n"]) % 1009
    left["all"] += right["all"]
    return left


def ranked(n: int) -> float:
    return float("nan") if n % 3 == 0 else n % 5


Way = Callable[..., Any]
"""Makes a table of what it takes, with ``emit``."""

GATHERED: dict[str, Way] = {
    "count": lambda k, **o: k.count(**o),
    "sum": lambda k, **o: k.sum(**o),
    "min": lambda k, **o: k.min(ranked, **o),
    "max": lambda k, **o: k.max(ranked, **o),
    "top": lambda k, **o: k.top(3, ranked, **o),
    "collect": lambda k, **o: k.collect(**o),
    "first": lambda k, **o: k.collect(limit=2, **o),
    "distinct": lambda k, **o: k.collect(distinct=True, **o),
    "first distinct": lambda k, **o: k.collect(distinct=True, limit=2, **o),
}
WINDOWS: dict[str, Any] = {
    "tumbling": tumbling(ms(50)),
    "hopping": hopping(ms(50), ms(20)),
    "sliding": sliding(ms(30)),
    "session": session(ms(8)),
    "count": count_window(4),
}
OF_TWO: dict[str, Way] = {
    "last values": lambda a, b: a.outer_join(b).apply(pair),
    "interval": lambda a, b: a.outer_join(b).within(ms(15)).apply(pair),
    "window": lambda a, b: a.outer_join(b).window(hopping(ms(50), ms(20))).apply(pair),
    "session": lambda a, b: a.outer_join(b).window(session(ms(8))).apply(pair),
    "table": lambda a, b: a.left_join(b.to_table(), pair),
}


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def boxed(n: int) -> dict[str, Any]:
    return {"n": n, "all": [n]}


def merged(builder: StreamBuilder) -> Any:
    """Read both topics by sources of their own; keys and numbers."""
    first, second = (keyed(builder, topic) for topic in QUEUES)
    return first.merge(second).group_by_key()


def keyed(builder: StreamBuilder, topic: str) -> Any:
    source: Any = builder.source(topic, serdes.json(Reading), allowed_lateness=ms(25))
    return source.key_by(lambda reading: reading.key).map_values(lambda reading: reading.n)


def shapes() -> dict[str, tuple[str, Way]]:
    """Give topologies by name, each with its ``emit`` and what makes it of a builder."""
    found: dict[str, tuple[str, Way]] = {}

    def add(name: str, emit: str, gather: Way, windows: Any = None, of_boxes: bool = False) -> None:
        def make(builder: StreamBuilder) -> Any:
            stream = merged(builder)
            stream = stream.map_values(boxed) if of_boxes else stream
            stream = stream if windows is None else stream.window(windows)
            return gather(stream, emit=emit).to_stream()

        found[f"{name} {emit}"] = (emit, make)

    for name, gather in GATHERED.items():
        for emit in ("update", "each"):
            add(name, emit, gather)
        for kind, windows in WINDOWS.items():
            add(f"{kind} windows, {name}", "close", gather, windows)
    for kind in ("tumbling", "hopping", "sliding"):
        add(f"{kind} windows, max", "update", GATHERED["max"], WINDOWS[kind])
    for emit in ("update", "each"):
        add("reduce", emit, lambda k, **o: k.reduce(grown, **o), of_boxes=True)
        add("aggregate", emit, lambda k, **o: k.aggregate(Grown, **o))
    for kind, windows in WINDOWS.items():
        reduce: Way = lambda k, **o: k.reduce(grown, **o)  # noqa: E731
        add(f"{kind} windows, reduce", "close", reduce, windows, of_boxes=True)
    for name, join in OF_TWO.items():
        found[f"join of {name}"] = (
            "each",
            lambda b, join=join: join(*(keyed(b, topic) for topic in QUEUES)),
        )
    found["columns"] = ("update", lambda b: by_columns(b).agg(*measures()).to_stream())
    for emit in ("close", "update"):
        found[f"windows of columns {emit}"] = (
            emit,
            lambda b, emit=emit: (
                by_columns(b).window(WINDOWS["hopping"]).agg(*measures(), emit=emit).to_stream()
            ),
        )
    # Several records of one cause, from several partitions.
    for name in ("collect", "max"):
        found[f"ties, {name}"] = (
            "update",
            lambda b, gather=GATHERED[name]: gather(
                merged(b)
                .flat_map(lambda key, n: [(f"{key}{i}", 15 * n + i) for i in range(3)])
                .group_by_key()
                .collect(emit="each")
                .to_stream()
                .map_values(lambda numbers: numbers[-1])
                .key_by(lambda n: n % 2),
                emit="update",
            ).to_stream(),
        )
    found["updates of updates"] = (
        "values",
        lambda b: (
            merged(b)
            .reduce(lambda left, right: left + right)
            .to_stream()
            .key_by(lambda total: total % 2)
            .aggregate(Grown)
            .to_stream()
            .map_values(lambda totals: totals and sorted(totals))
        ),
    )
    return found


def by_columns(builder: StreamBuilder) -> Any:
    """Read both topics by one source."""
    source: Any = builder.source([*QUEUES], serdes.json(Reading), allowed_lateness=ms(25))
    return source.group_by("key")


def measures() -> Sequence[Any]:
    ranked = if_else(col("n") % 3 == 0, float("nan"), col("n") * 1.0)
    extremes = min_(ranked).named("least"), max_(ranked).named("most")
    return count(), sum_("n"), min_("n"), max_("n"), avg("n"), *extremes


SHAPES = shapes()


def results(topology: Topology, cuts: Iterable[int]) -> list[TestRecord[Any, Any]]:
    edges = [0, *cuts, len(SENT)]
    with TopologyTestDriver(topology, queues=QUEUES, start=EPOCH) as driver:
        for begin, end in pairwise(edges):
            with driver.batch():
                for one in SENT[begin:end]:
                    source = driver.input(one.topic, serdes.json(Reading), queue=one.queue)
                    source.send(Reading(one.key, one.n), time=EPOCH + ms(one.time))
        return driver.output("out", serdes.plain).read_all()


def compared(emit: str, found: list[TestRecord[Any, Any]]) -> list[str]:
    """Give all results in any order, or the last of each key and window of updates.

    Of updates of updates only the values: their times are those of the last change seen.
    """
    if emit == "values":
        return sorted(repr(each) for each in {r.key: r.value for r in found}.items())
    if emit == "update":
        found = list({(r.key, str(r.headers)): r for r in found}.values())
    return sorted(map(repr, found))


@pytest.mark.parametrize("shape", SHAPES)
def test_results_do_not_depend_on_how_records_are_cut_into_batches(shape: str) -> None:
    emit, make = SHAPES[shape]
    builder = StreamBuilder("cuts")
    # None would become an empty body, a tombstone.
    make(builder).map_values(lambda value: [value]).sink("out", serdes.plain)
    topology = builder.build()
    whole = compared(emit, results(topology, ()))
    assert len(whole) > 1
    differ = [
        name for name, cuts in CUTS.items() if compared(emit, results(topology, cuts)) != whole
    ]
    assert not differ
