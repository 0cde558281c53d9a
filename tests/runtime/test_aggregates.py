"""Aggregates: results, ties, exactness, the same however records are cut into batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace import (
    Measure,
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
from headrace.errors import TopologyError
from headrace.runtime import TopologyTestDriver
from headrace.runtime.aggregates.algebra import ABSENT, STANDARD_ERROR, HyperLogLog
from headrace.runtime.aggregates.algebras import algebra_of
from headrace.streams import KeyedStream, StreamBuilder, Table
from headrace.streams.windowed import WindowedStream, WindowedTable
from headrace.topology import Accumulator, Aggregate, EntriesSerde, state_shape
from headrace.topology.windows import count_window, hopping, session, sliding, tumbling

SECOND = timedelta(seconds=1)
START = datetime(2024, 1, 1, tzinfo=UTC)

Gather = Callable[[KeyedStream[str, Any]], Table[str, Any]]


class Joined(Accumulator[Any, str]):
    def __init__(self) -> None:
        self.text = ""

    def add(self, value: Any) -> None:
        self.text += str(value["n"])

    def result(self) -> str:
        return self.text


class Added(Accumulator[Any, int]):
    def __init__(self) -> None:
        self.total = 0

    def add(self, value: Any) -> None:
        self.total += value["n"]

    def merge(self, other: Added) -> None:
        self.total += other.total

    def result(self) -> int:
        return self.total


def results(
    gather: Gather, records: list[tuple[str, Any]], cuts: Collection[int] = (), queues: int = 1
) -> list[tuple[str, Any]]:
    """Run records of (key, value) through an aggregate, a new batch before each cut."""
    builder = StreamBuilder("job")
    source = builder.source("in", serdes.plain)
    keyed = source.key_by(lambda pair: pair[0]).map_values(lambda pair: pair[1])
    # None would become an empty body, a tombstone.
    gather(keyed).to_stream().map_values(lambda value: [value]).sink("out", serdes.plain)
    batches: list[list[tuple[str, Any]]] = [[]]
    for index, record in enumerate(records):
        if index in cuts:
            batches.append([])
        batches[-1].append(record)
    sent = 0
    with TopologyTestDriver(builder.build(), queues={"in": queues}) as driver:
        for batch in batches:
            with driver.batch():
                for record in batch:
                    driver.input("in", serdes.plain, queue=sent % queues).send(record)
                    sent += 1
        return [(r.key, r.value[0]) for r in driver.output("out", serdes.plain).read_all()]


def one(gather: Gather, values: list[Any], *cuts: int) -> Any:
    return dict(results(gather, [("k", value) for value in values], set(cuts)))["k"]


def test_count_distinct_tells_values_apart_as_keys_are() -> None:
    values = [1, 1.0, True, 1, "1", {"a": 1, "b": 2}, {"b": 2, "a": 1}]
    assert one(lambda k: k.count_distinct(), values, 3) == 5
    assert one(lambda k: k.count_distinct(lambda v: str(v)[:1]), values, 3) == 3


@pytest.mark.parametrize("number", [0, 1, 10, 1000, 4000, 20_000, 300_000])
def test_estimates_are_within_four_standard_errors(number: int) -> None:
    sketch = HyperLogLog()
    for value in range(number):
        sketch.add(value.to_bytes(8, "big"))
    assert abs(sketch.estimate() - number) <= 4 * STANDARD_ERROR * number
    again = HyperLogLog.from_bytes(sketch.to_bytes())
    assert (again.estimate(), len(sketch.to_bytes()) <= 4097) == (sketch.estimate(), True)


@pytest.mark.parametrize(("left", "right"), [(100, 100), (100, 5000), (5000, 100), (5000, 5000)])
def test_merged_estimates_are_those_of_all_values(left: int, right: int) -> None:
    parts, whole = (HyperLogLog(), HyperLogLog()), HyperLogLog()
    for part, values in zip(parts, (range(left), range(50, 50 + right)), strict=True):
        for value in values:
            part.add(str(value).encode())
            whole.add(str(value).encode())
    parts[0].merge(parts[1])
    assert parts[0].to_bytes() == whole.to_bytes()


def test_damaged_registers_are_refused() -> None:
    for data in (b"", b"x", b"d123", b"s12"):
        with pytest.raises(ValueError, match="HyperLogLog"):
            HyperLogLog.from_bytes(data)


def test_approximate_count_distinct_goes_on_from_its_state() -> None:
    values = list(range(300)) * 2
    found = one(lambda k: k.count_distinct(approximate=True), values, 100, 200, 400)
    assert abs(found - 300) <= 15


def test_averages_are_exact() -> None:
    assert one(lambda k: k.avg(), [2**60, 2**60 + 2, 2**60 + 4], 1) == float(2**60 + 2)
    tenth = [Decimal("0.1")] * 10
    assert one(lambda k: k.avg(), tenth, 3, 7) == Decimal("0.1")
    assert one(lambda k: k.avg(lambda v: v["n"]), [{"n": 1}, {"n": 2}]) == 1.5


def test_merged_averages_weigh_by_number() -> None:
    """Defect 14: the average of {1} and {3, 5} was 1.0."""
    assert one(lambda k: k.avg(), [1, 3, 5], 1) == 3.0


def test_sums_are_exact() -> None:
    """Defect 15: integers overflowed, and decimals could not be added."""
    assert one(lambda k: k.sum(), [Decimal("1e30"), Decimal("1e-30"), Decimal("-1e30")], 2) == (
        Decimal("1e-30")
    )
    assert one(lambda k: k.sum(), [2**31 - 1, 1, 2**63], 1) == 2**31 + 2**63


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3)])
def test_extremes_are_records_and_ties_keep_the_first(cuts: tuple[int, ...]) -> None:
    values = [{"n": 2, "id": "a"}, {"n": 1, "id": "b"}, {"n": 1, "id": "c"}, {"n": 2, "id": "d"}]
    assert one(lambda k: k.min(lambda v: v["n"]), values, *cuts)["id"] == "b"
    assert one(lambda k: k.max(lambda v: v["n"]), values, *cuts)["id"] == "a"
    top = one(lambda k: k.top(3, lambda v: v["n"]), values, *cuts)
    assert [record["id"] for record in top] == ["a", "d", "b"]


def test_ties_between_queues_keep_the_first_that_arrived() -> None:
    records = [("k", {"n": 1, "id": number}) for number in range(6)]
    for queues in (1, 2, 3):
        ((_, best),) = results(lambda k: k.max(lambda v: v["n"]), records, queues=queues)
        ((_, top),) = results(lambda k: k.top(2, lambda v: v["n"]), records, queues=queues)
        ((_, all_),) = results(lambda k: k.collect(), records, queues=queues)
        assert best["id"] == 0
        assert [record["id"] for record in top] == [0, 1]
        assert [record["id"] for record in all_] == list(range(6))


def test_lists_keep_order_limit_and_first_of_equals() -> None:
    values = ["b", "a", "b", "c", "a", "d"]
    assert one(lambda k: k.collect(), values, 2, 4) == values
    assert one(lambda k: k.collect(limit=3), values, 2, 4) == ["b", "a", "b"]
    assert one(lambda k: k.collect(distinct=True), values, 2, 4) == ["b", "a", "c", "d"]
    assert one(lambda k: k.collect(distinct=True, limit=3), values, 2, 4) == ["b", "a", "c"]


def test_each_gives_a_result_per_record() -> None:
    records = [("k", 3), ("k", 1), ("j", 5), ("k", 1)]
    gathers: dict[str, tuple[Gather, list[Any]]] = {
        "distinct": (lambda k: k.count_distinct(emit="each"), [1, 2, 1, 2]),
        "estimate": (lambda k: k.count_distinct(approximate=True, emit="each"), [1, 2, 1, 2]),
        "avg": (lambda k: k.avg(emit="each"), [3, 2, 5, 5 / 3]),
        "min": (lambda k: k.min(emit="each"), [3, 1, 5, 1]),
        "max": (lambda k: k.max(emit="each"), [3, 3, 5, 3]),
        "top": (lambda k: k.top(2, emit="each"), [[3], [3, 1], [5], [3, 1]]),
        "collect": (lambda k: k.collect(emit="each"), [[3], [3, 1], [5], [3, 1, 1]]),
    }
    for name, (gather, expected) in gathers.items():
        found = results(gather, records, {2})
        per_key = [[v for key, v in found if key == wanted] for wanted in ("k", "j")]
        k1, k2, j1, k3 = expected
        assert per_key == [[k1, k2, k3], [j1]], name


def test_a_reducer_may_give_none() -> None:
    assert one(lambda k: k.reduce(lambda a, b: None if a == 1 else (a, b)), [1, 2, 3], 2) == (
        None,
        3,
    )


def test_what_cannot_be_kept_is_refused_when_it_is_built() -> None:
    class Odd:
        pass

    def odd(value: Any) -> Odd:
        return Odd()

    keyed = StreamBuilder("job").source("in", serdes.plain).key_by(str)
    with pytest.raises(TopologyError, match=r"cannot tell values of type .*Odd apart"):
        keyed.count_distinct(odd)
    with pytest.raises(TopologyError, match=r"no serde is known for .*Odd"):
        keyed.map_values(odd).max(lambda value: 1)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(TopologyError, match="cannot keep"):
            keyed.top(wrong)  # type: ignore[arg-type]
        with pytest.raises(TopologyError, match="cannot keep"):
            keyed.collect(limit=wrong)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="emit='close'"):
        keyed.avg(emit="close")  # type: ignore[call-overload]
    for build, message in (
        (keyed.agg, "nothing to compute"),
        (lambda: keyed.agg(len), "takes aggregates, not <built-in function len>"),  # type: ignore[arg-type]
        (lambda: keyed.agg(count(), count()), r"two aggregates the name 'count'(.|\n)*\.named\("),
        (lambda: keyed.agg(n=count("n")), r"the column n, but a keyed(.|\n)*group_by\("),
        (lambda: keyed.agg(n=sum_("n")), r"^sum at .*test_aggregates.py:\d+ names the column n"),
        (lambda: keyed.agg(n=top(0)), "top at .* cannot keep 0"),
        (lambda: keyed.agg(n=sum_(max), o=reduce(len)), "function.result, value.* not accept"),  # type: ignore[arg-type]
        (lambda: keyed.window(session(SECOND)).agg(n=aggregate(Joined)), "cannot merge"),
    ):
        with pytest.raises(TopologyError, match=message):
            build()


def test_entries_that_are_cut_off_are_refused() -> None:
    serde = EntriesSerde(serdes.string)
    written = serde.serialize([(7, "abc"), (-1, "")])
    assert serde.deserialize(written) == [(7, "abc"), (-1, "")]
    assert serde.serialize_many([[(7, "abc"), (-1, "")]])[0].as_py() == written
    with pytest.raises(ValueError, match="cut off"):
        serde.deserialize(written[:14])


@pytest.mark.parametrize(
    "between",
    [lambda k: k.where(lambda v: v > 0), lambda k: k.map_values(abs), lambda k: k.peek(str)],
)
def test_operators_between_the_key_and_the_aggregate_keep_the_shuffle(
    between: Callable[[KeyedStream[str, Any]], KeyedStream[str, Any]],
) -> None:
    """Defect 2: an operator behind key_by lost the shuffle, and the count its state."""
    records = [("a", 1), ("b", 2), ("a", 3)]
    assert dict(results(lambda k: between(k).count(), records, {1}, queues=2)) == {"a": 2, "b": 1}


def test_two_aggregates_in_one_job_do_not_share_state() -> None:
    """Defect 3: both kept their state under the record's key alone."""
    builder = StreamBuilder("two")
    numbers = builder.source("in", serdes.int).key_by(lambda number: "k")
    numbers.count().to_stream().sink("counts", serdes.int)
    numbers.sum().to_stream().sink("sums", serdes.int)
    with TopologyTestDriver(builder.build()) as driver:
        for number in (5, 6):
            driver.input("in", serdes.int).send(number)
        assert [r.value for r in driver.output("counts", serdes.int).read_all()] == [1, 2]
        assert [r.value for r in driver.output("sums", serdes.int).read_all()] == [5, 11]


def test_count_takes_no_selector_that_it_would_not_use() -> None:
    """Defect 21: count(selector) never called the selector."""
    keyed = StreamBuilder("job").source("in", serdes.string).key_by(str)
    with pytest.raises(TypeError, match="positional argument"):
        keyed.count(len)  # type: ignore[call-arg, arg-type]


GATHERS: dict[str, Gather] = {
    "count": lambda k: k.count(),
    "count_distinct": lambda k: k.count_distinct(lambda v: v["n"]),
    "estimate": lambda k: k.count_distinct(lambda v: v["n"], approximate=True),
    "sum": lambda k: k.sum(lambda v: v["n"]),
    "avg": lambda k: k.avg(lambda v: v["n"]),
    "min": lambda k: k.min(lambda v: v["n"]),
    "max": lambda k: k.max(lambda v: v["n"]),
    "top": lambda k: k.top(3, lambda v: v["n"]),
    "collect": lambda k: k.collect(),
    "first": lambda k: k.collect(limit=3),
    "distinct": lambda k: k.collect(distinct=True, limit=4),
    "reduce": lambda k: k.reduce(lambda a, b: {"n": a["n"] * 3 + b["n"], "id": b["id"]}),
    "custom": lambda k: k.aggregate(Joined),
    "merged": lambda k: k.aggregate(Added),
}

RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3)), max_size=20)


def expected(name: str, values: list[dict[str, int]]) -> Any:
    """Say it again in plain Python, over all values at once."""
    numbers = [value["n"] for value in values]
    ranked = sorted(values, key=lambda v: (-v["n"], v["id"]))
    answers: dict[str, Callable[[], Any]] = {
        "count": lambda: len(values),
        "count_distinct": lambda: len(set(numbers)),
        "estimate": lambda: len(set(numbers)),
        "sum": lambda: sum(numbers),
        "avg": lambda: math.fsum(numbers) / len(numbers),
        "min": lambda: min(values, key=lambda v: (v["n"], v["id"])),
        "max": lambda: ranked[0],
        "top": lambda: ranked[:3],
        "collect": lambda: values,
        "first": lambda: values[:3],
        "distinct": lambda: values[:4],
        "custom": lambda: "".join(map(str, numbers)),
        "merged": lambda: sum(numbers),
    }
    if name in answers:
        return answers[name]()
    folded = values[0]
    for value in values[1:]:
        folded = {"n": folded["n"] * 3 + value["n"], "id": value["id"]}
    return folded


@pytest.mark.parametrize("name", GATHERS)
@settings(max_examples=15, deadline=timedelta(seconds=5))
@given(records=RECORDS, cuts=st.sets(st.integers(1, 19)), queues=st.integers(1, 3))
def test_the_last_value_of_each_key_does_not_depend_on_batches_or_queues(
    name: str, records: list[tuple[str, int]], cuts: set[int], queues: int
) -> None:
    numbered = [(key, {"n": n, "id": index}) for index, (key, n) in enumerate(records)]
    last = dict(results(GATHERS[name], numbered, cuts, queues))
    by_key = {key: [v for k, v in numbered if k == key] for key in dict(numbered)}
    assert last == {key: expected(name, values) for key, values in by_key.items()}


# Several at once: each must be what it is alone.

MEASURES: dict[str, Measure[Any]] = {
    "count": count(),
    "count_distinct": count_distinct(lambda v: v["n"]),
    "estimate": count_distinct(lambda v: v["n"], approximate=True),
    "sum": sum_(lambda v: v["n"]),
    "avg": avg(lambda v: v["n"]),
    "min": min_(lambda v: v["n"]),
    "max": max_(lambda v: v["n"]),
    "top": top(3, lambda v: v["n"]),
    "collect": collect(),
    "first": collect(limit=3),
    "distinct": collect(distinct=True, limit=4),
    "reduce": reduce(lambda a, b: {"n": a["n"] * 3 + b["n"], "id": b["id"]}),
    "custom": aggregate(Joined),
    "merged": aggregate(Added()),
}


#: What cannot take a value without a number; a reducer takes the first one whatever it is.
BREAKING = sorted(set(MEASURES) - {"count", "collect", "first", "distinct", "reduce"})


@settings(max_examples=40, deadline=timedelta(seconds=5))
@given(
    breaking=st.sampled_from(BREAKING),
    names=st.lists(st.sampled_from(list(MEASURES)), min_size=1, max_size=6, unique=True),
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3, 3) | st.none())),
    cuts=st.sets(st.integers(1, 9)),
    each=st.booleans(),
)
def test_several_aggregates_at_once_are_what_each_is_alone(
    breaking: str,
    names: list[str],
    records: list[tuple[str, int | None]],
    cuts: set[int],
    each: bool,
) -> None:
    """A record without a number fails in one, and must count for no other one either."""
    chosen = list(dict.fromkeys((*names, breaking)))
    measures = [MEASURES[name].named(name) for name in chosen]
    values = [
        (key, {"id": index} if n is None else {"n": n, "id": index})
        for index, (key, n) in enumerate(records)
    ]
    found = results(
        lambda k: k.agg(*measures, emit="each" if each else "update", on_error="skip"), values, cuts
    )
    good = [(key, value) for key, value in values if "n" in value]
    rows = []
    for at, (key, _) in enumerate(good):
        so_far = [value for other, value in good[: at + 1] if other == key]
        rows.append((key, {name: expected(name, so_far) for name in chosen}))
    assert found == rows if each else dict(found) == dict(rows)
    assert all(list(row) == chosen for _, row in found)


@pytest.mark.parametrize(
    "windows",
    [
        tumbling(10 * SECOND),
        hopping(10 * SECOND, 5 * SECOND),
        sliding(6 * SECOND),
        session(4 * SECOND),
        count_window(3),
    ],
    ids=repr,
)
@settings(max_examples=4, deadline=timedelta(seconds=5))
@given(
    records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3, 3), st.integers(0, 30))),
    cut=st.integers(0, 9),
)
def test_windows_gather_several_at_once(
    windows: Any, records: list[tuple[str, int, int]], cut: int
) -> None:
    names = ["count", "max", "collect", "merged", *(["reduce"] if cut % 2 else [])]
    builder = StreamBuilder("windows")
    source = builder.source("in", serdes.plain, allowed_lateness=5 * SECOND)
    windowed = source.key_by(lambda v: v["key"]).window(windows)
    tables: dict[str, WindowedTable[Any, Any, Any]] = {
        "row": windowed.agg(*(MEASURES[name].named(name) for name in names)),
        "count": windowed.count(),
        "max": windowed.max(lambda v: v["n"]),
        "collect": windowed.collect(),
        "merged": windowed.aggregate(Added),
        "reduce": windowed.reduce(lambda a, b: {"n": a["n"] * 3 + b["n"], "id": b["id"]}),
    }
    for name, table in tables.items():
        told = table.to_stream(with_window=True).map_values(lambda one: (one.start, one.value))
        told.sink(name, serdes.plain)
    sides = ("row", "count") if windows != count_window(3) else ()
    for name in sides:
        tables[name].late().sink(f"late-{name}", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        taken = driver.input("in", serdes.plain)
        for batch in (records[:cut], records[cut:], [("z", 0, 100)], [("z", 0, 200)]):
            with driver.batch():
                for key, n, at in batch:
                    taken.send({"key": key, "n": n, "id": at}, time=START + at * SECOND)

        def read(topic: str) -> list[tuple[Any, ...]]:
            found = driver.output(topic, serdes.plain).read_all()
            return sorted(((r.key, *r.value) for r in found), key=itemgetter(0, 1))

        alone = {name: read(name) for name in names}
        rows = read("row")
        late = [driver.output(f"late-{name}", serdes.plain).read_all() for name in sides]
        assert late[:1] == late[1:]
    for name, found in alone.items():
        assert [(key, start, row[name]) for key, start, row in rows] == found


def test_the_state_of_several_goes_by_their_names_and_not_by_their_order() -> None:
    def gathered(*measures: Measure[Any]) -> Aggregate:
        builder = StreamBuilder("job")
        table = builder.source("in", serdes.plain).key_by(str).agg(*measures, name="row")
        table.sink("out", serdes.plain)
        operator = builder.build().operator("row")
        assert isinstance(operator, Aggregate)
        return operator

    first = gathered(count(), sum_(lambda v: v["n"]), collect())
    second = gathered(collect(), sum_(lambda v: v["n"]), count())
    assert state_shape(first) == state_shape(second) != state_shape(gathered(count()))
    one, other = algebra_of(first.aggregation), algebra_of(second.aggregation)
    written = one.encode([one.add(ABSENT, {"n": 5}, 1)])
    assert other.result(*other.decode(written)) == {"collect": [{"n": 5}], "sum": 5, "count": 1}


WINDOWED: dict[str, tuple[Callable[[WindowedStream[str, Any]], Any], Any]] = {
    "count_distinct": (lambda w: w.count_distinct(), [2, 1]),
    "estimate": (lambda w: w.count_distinct(approximate=True), [2, 1]),
    "avg": (lambda w: w.avg(), [7 / 3, 9.0]),
    "min": (lambda w: w.min(), [1, 9]),
    "max": (lambda w: w.max(lambda v: -v), [1, 9]),
    "top": (lambda w: w.top(2), [[3, 3], [9]]),
    "collect": (lambda w: w.collect(), [[3, 1, 3], [9]]),
    "distinct": (lambda w: w.collect(distinct=True, limit=2), [[3, 1], [9]]),
}


@pytest.mark.parametrize("windows", [tumbling(10 * SECOND), session(4 * SECOND)], ids=repr)
@pytest.mark.parametrize("one_batch", [True, False])
@pytest.mark.parametrize("name", WINDOWED)
def test_windows_gather_what_keyed_streams_do(name: str, one_batch: bool, windows: Any) -> None:
    gather, expected = WINDOWED[name]
    builder = StreamBuilder("windows")
    numbers = builder.source("in", serdes.int, allowed_lateness=5 * SECOND).key_by(
        lambda number: "k"
    )
    gather(numbers.window(windows)).to_stream().sink("out", serdes.plain)
    sent = [(3, 0), (1, 5), (3, 2), (9, 12), (0, 100)]
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input("in", serdes.int)
        with driver.batch() if one_batch else nullcontext():
            for number, seconds in sent:
                # In a session, 0 and 5 meet only by what came at 2.
                source.send(number, time=START + seconds * SECOND)
        found = [r.value for r in driver.output("out", serdes.plain).read_all()]
    assert found == expected
