"""Updates that feed aggregates: old values are taken back, whatever batches are cut like."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace import (
    aggregate,
    avg,
    collect,
    count,
    count_distinct,
    max_,
    min_,
    reduce,
    serdes,
    sum_,
    top,
)
from headrace.errors import TopologyError, UserCodeError
from headrace.runtime import TopologyTestDriver
from headrace.streams import KeyedStream, Stream, StreamBuilder, Table
from headrace.topology import Accumulator, Aggregate, Topology
from headrace.topology.windows import tumbling

Gather = Callable[[KeyedStream[str, Any]], Table[str, Any]]


class Sum(Accumulator[tuple[str, int], int]):
    def __init__(self) -> None:
        self.total = 0

    def add(self, value: tuple[str, int]) -> None:
        self.total += value[1]

    def remove(self, value: tuple[str, int]) -> None:
        self.total -= value[1]

    def result(self) -> int:
        return self.total


def counts(builder: StreamBuilder) -> Stream[str, tuple[str, int]]:
    """Give (word, count) as a stream of updates, but for words seen three times."""
    words = builder.source("words", serdes.string).key_by(lambda word: word)
    updates = words.count(name="words").to_stream()
    return updates.map(lambda word, count: (word, (word, count))).where(lambda v: v[1] != 3)


def by_letter(gather: Gather) -> Topology:
    builder = StreamBuilder("letters")
    keyed = counts(builder).key_by(lambda pair: pair[0][0])
    gather(keyed).sink("out", serdes.plain)
    return builder.build()


def table(
    topology: Topology, words: list[str], cuts: Collection[int] = (), queues: int = 1
) -> dict[str, Any]:
    """Run words, a new batch before each cut; give the last value of each key."""
    batches: list[list[tuple[int, str]]] = [[]]
    for index, word in enumerate(words):
        if index in cuts:
            batches.append([])
        batches[-1].append((index % queues, word))
    with TopologyTestDriver(topology, queues={"words": queues}) as driver:
        for batch in batches:
            with driver.batch():
                for queue, word in batch:
                    driver.input("words", serdes.string, queue=queue).send(word)
        records = driver.output("out", serdes.bytes).read_all()
        last = {record.key: record.value for record in records}
        live = {key: serdes.plain.deserialize(body) for key, body in last.items() if body}
        (name,) = [o.name for o in topology.stateful if o.name != "words"]
        assert set(driver.state(name).all()) == set(live)
        return live


GATHERS: dict[str, tuple[Gather, Callable[[list[tuple[str, int]]], Any]]] = {
    "count": (lambda k: k.count(), len),
    "sum": (lambda k: k.sum(lambda v: v[1]), lambda found: sum(n for _, n in found)),
    "avg": (lambda k: k.avg(lambda v: v[1]), lambda f: sum(n for _, n in f) / len(f)),
    "min": (lambda k: k.min(lambda v: v[1]), lambda f: min(f, key=lambda v: (v[1], v))),
    "max": (lambda k: k.max(lambda v: v[1]), lambda f: min(f, key=lambda v: (-v[1], v))),
    "top": (
        lambda k: k.top(2, lambda v: v[1]),
        lambda f: sorted(f, key=lambda v: (-v[1], v))[:2],
    ),
    "collect": (lambda k: k.collect(), sorted),
    "unique": (
        lambda k: k.map_values(lambda v: v[1] % 2).collect(distinct=True),
        lambda f: sorted({n % 2 for _, n in f}),
    ),
    "count_distinct": (
        lambda k: k.count_distinct(lambda v: v[1]),
        lambda f: len({n for _, n in f}),
    ),
    "custom": (lambda k: k.aggregate(Sum), lambda found: sum(n for _, n in found)),
}
GATHERS["row"] = (
    lambda k: k.agg(
        custom=aggregate(Sum),
        count=count(),
        sum=sum_(lambda v: v[1]),
        avg=avg(lambda v: v[1]),
        min=min_(lambda v: v[1]),
        max=max_(lambda v: v[1]),
        top=top(2, lambda v: v[1]),
        collect=collect(),
        count_distinct=count_distinct(lambda v: v[1]),
    ),
    lambda found: {
        name: answer(found)
        for name, (_, answer) in GATHERS.items()
        if name not in ("row", "unique")
    },
)
WORDS = st.lists(st.sampled_from(["a1", "a2", "a3", "b1", "b2", "c1"]), max_size=24)


@pytest.mark.parametrize("name", GATHERS)
@settings(max_examples=25, deadline=timedelta(seconds=5))
@given(words=WORDS, cuts=st.sets(st.integers(1, 23)), queues=st.integers(1, 3))
def test_aggregates_of_updates_hold_what_is_true_now(
    name: str, words: list[str], cuts: set[int], queues: int
) -> None:
    gather, answer = GATHERS[name]
    letters: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for word, seen in sorted(Counter(words).items()):
        if seen != 3:
            letters[word[0]].append((word, seen))
    expected = {letter: answer(found) for letter, found in letters.items()}
    assert table(by_letter(gather), words, cuts, queues) == expected


def test_a_group_that_loses_its_last_value_becomes_a_tombstone() -> None:
    builder = StreamBuilder("groups")
    words = builder.source("words", serdes.string).key_by(lambda word: word)
    by_count = words.count(name="words").to_stream().key_by(lambda count: count)
    by_count.count(name="groups").sink("out", serdes.int)
    with TopologyTestDriver(builder.build()) as driver:
        words_in, out = driver.input("words", serdes.string), driver.output("out", serdes.bytes)
        words_in.send("a")
        assert [(r.key, r.value) for r in out.read_all()] == [(1, serdes.int.serialize(1))]
        words_in.send("a")
        found = {r.key: r.value for r in out.read_all()}
        assert found == {1: b"", 2: serdes.int.serialize(1)}
        assert driver.state("groups").all() == {2: 1}


def test_updates_of_updates_are_taken_back_too() -> None:
    builder = StreamBuilder("chain")
    words = builder.source("words", serdes.string).key_by(lambda word: word)
    sizes = words.count(name="words").to_stream().key_by(lambda count: count)
    groups = sizes.count(name="groups").to_stream().where(lambda count: count is not None)
    groups.key_by(lambda count: "most").max(name="most").sink("out", serdes.int)
    topology = builder.build()
    plan = topology.plan
    assert [o.name for o in topology.stateful if plan.retracts(o)] == ["words", "groups"]
    with TopologyTestDriver(topology) as driver:
        for word in ("a", "b", "c", "a", "b"):
            driver.input("words", serdes.string).send(word)
        found = [r.value for r in driver.output("out", serdes.int).read_all()]
    # Words seen once: 1, 2, 3, then 2 and one seen twice, then 1 and two.
    assert (found[:3], found[-1]) == ([1, 2, 3], 2)


def test_only_aggregates_see_old_values() -> None:
    seen: list[Any] = []
    builder = StreamBuilder("seen")
    updates = counts(builder).peek(seen.append)
    updates.sink("plain", serdes.json)
    updates.key_by(lambda pair: pair[0][0]).count().sink("out", serdes.json)
    with TopologyTestDriver(builder.build()) as driver:
        for _ in range(2):
            driver.input("words", serdes.string).send("a")
        values = [r.value for r in driver.output("plain", serdes.json).read_all()]
    assert values == [["a", 1], ["a", 2]]
    assert seen == [("a", 1), ("a", 2)]


def test_no_old_values_are_made_where_nobody_takes_them_back() -> None:
    builder = StreamBuilder("plain")
    counts(builder).sink("out", serdes.json)
    builder.source("each", serdes.string).key_by(len).count(emit="each", name="each").to_stream(
        name="results"
    ).key_by(lambda count: count % 2).count(name="of_each").to_stream(name="last").sink(
        "odd", serdes.int
    )
    topology = builder.build()
    assert not [o.name for o in topology.stateful if topology.plan.retracts(o)]
    found = topology.operator("of_each")
    assert isinstance(found, Aggregate)
    assert not found.aggregation.updates


def test_a_value_that_was_never_given_cannot_be_taken_back() -> None:
    state = {"calls": 0}

    def moody(count: int) -> str:
        state["calls"] += 1
        return str(state["calls"])

    builder = StreamBuilder("moody")
    words = builder.source("words", serdes.string).key_by(lambda word: word)
    words.count().to_stream().key_by(moody).sum().to_stream(name="sums").sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("words", serdes.string).send("a")
        with pytest.raises(UserCodeError, match="must give the same for the same value"):
            driver.input("words", serdes.string).send("a")


def test_aggregates_that_cannot_take_back_are_refused_when_they_are_built() -> None:
    class Stubborn(Accumulator[Any, int]):
        def add(self, value: Any) -> None: ...

        def result(self) -> int:
            return 0

    refused: list[tuple[Gather, str]] = [
        (lambda k: k.reduce(max), r"'reduce-words' \(made at (.|\n)*use aggregate"),
        (lambda k: k.aggregate(Stubborn), r"cannot take a value back(.|\n)*remove\(value\)"),
        (lambda k: k.count_distinct(approximate=True), r"count exactly"),
        (lambda k: k.count(emit="each"), r"no result for each record"),
        (lambda k: k.agg(n=count(), m=reduce(max)), r"'m' of 'agg-words' (.|\n)*use aggregate"),
    ]
    for gather, message in refused:
        with pytest.raises(TopologyError, match=message):
            by_letter(gather)


def test_windows_refuse_updates() -> None:
    builder = StreamBuilder("timed")
    keyed = counts(builder).key_by(lambda pair: pair[0])
    keyed.window(tumbling(timedelta(minutes=1))).count().sink("out", serdes.json)
    with pytest.raises(TopologyError, match=r"goes by the time(.|\n)*'words'(.|\n)*emit=\"each\""):
        builder.build()


def test_windows_take_results_that_are_given_once_per_record() -> None:
    builder = StreamBuilder("timed")
    words = builder.source("words", serdes.string).key_by(lambda word: word)
    each = words.count(name="words", emit="each").to_stream().key_by(lambda count: "all")
    each.window(tumbling(timedelta(minutes=1))).count().sink("out", serdes.json)
    assert next(o.name for o in builder.build().stateful) == "words"
