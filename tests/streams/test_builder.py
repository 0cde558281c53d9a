from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    Accumulator,
    Keyed,
    KeyedStream,
    StreamBuilder,
    TopologyError,
    hopping,
    serdes,
    tumbling,
)
from headrace.topology import Aggregate, Operator, Sink, Topology

HERE = Path(__file__).name


@dataclass
class Order:
    item: str
    price: int


class Longest(Accumulator[str, str]):
    def __init__(self, start: str = "") -> None:
        self.word = start

    def add(self, value: str) -> None:
        self.word = max(self.word, value, key=len)

    def result(self) -> str:
        return self.word


class Merging(Longest):
    def merge(self, other: Longest) -> None:
        self.add(other.word)


class Needy(Longest):
    def __init__(self, start: str) -> None:
        super().__init__(start)


class Raising(Longest):
    def __init__(self) -> None:
        raise KeyError("home")


class Odd(Longest):
    def __init__(self) -> None:
        super().__init__()
        self.odd = object()


def dearest(left: Any, right: Any) -> Any:
    return max(left, right, key=lambda order: order.price)


def read_order(body: bytes) -> Order:
    item, price = body.decode().split("=")
    return Order(item, int(price))


def word_count(builder: StreamBuilder) -> Topology:
    (
        builder.source("lines", serdes.string)
        .flat_map_values(lambda line: line.lower().split())
        .key_by(lambda word: word)
        .count()
        .to_stream()
        .sink("counts", serdes.json)
    )
    return builder.build()


def names(topology: Topology) -> list[str]:
    return [operator.name for operator in topology.operators]


def aggregate_of(topology: Topology) -> Aggregate:
    (operator,) = topology.stateful
    assert isinstance(operator, Aggregate)
    return operator


def keyed_words(
    builder: StreamBuilder | None = None,
) -> tuple[StreamBuilder, KeyedStream[str, str]]:
    builder = builder or StreamBuilder("job")
    return builder, builder.source("words", serdes.string).key_by(lambda word: word)


def test_word_count_builds() -> None:
    topology = word_count(StreamBuilder("word-count"))
    assert names(topology) == [
        "source-lines",
        "flat_map_values-lines",
        "key_by-lines",
        "count-lines",
        "to_stream-lines",
        "sink-counts",
    ]
    assert topology.state_topics == {"count-lines": "word-count-count-lines-stateTopic"}
    assert topology.commit_topic == "word-count-commitTopic"


def test_names_do_not_depend_on_what_else_was_built() -> None:
    first, second = StreamBuilder("a"), StreamBuilder("b")
    one, other = first.source("x", serdes.string), second.source("x", serdes.string)
    other.key_by(len).count()
    one.key_by(len).count()
    assert names(first.build()) == names(second.build())


def test_names_repeat_with_a_number_per_kind_and_source() -> None:
    builder = StreamBuilder("job")
    words, lines = builder.source("words", serdes.string), builder.source("lines", serdes.string)
    tables = [stream.key_by(len).count() for stream in (words, words, lines)]
    assert [table.name for table in tables] == ["count-words", "count-words-2", "count-lines"]


def test_naming_one_operator_leaves_the_names_of_others() -> None:
    def second_count(name: str | None) -> str:
        _, words = keyed_words()
        words.count(name=name)
        return words.count().name

    assert second_count(None) == second_count("mine") == "count-words-2"


def test_a_stateless_operator_in_front_leaves_the_state_where_it_is() -> None:
    _, words = keyed_words()
    assert words.count().name == keyed_words()[1].where(len).peek(print).count().name


def test_a_named_source_names_what_follows() -> None:
    builder = StreamBuilder("job")
    assert builder.source("topic-1", serdes.string, name="orders").where(len).name == "where-orders"


def test_every_operator_knows_the_line_that_made_it() -> None:
    builder = StreamBuilder("job")
    (
        builder.source("lines", serdes.string)
        .map_values(len)
        .sink("out", serdes.json)
    )  # fmt: skip
    origins = [operator.origin for operator in builder.build().operators]
    lines = [origin.line for origin in origins if origin is not None]
    assert {Path(origin.file).name for origin in origins if origin is not None} == {HERE}
    assert lines == [lines[0], lines[0] + 1, lines[0] + 2]


def test_streams_branch_and_end_in_several_sinks() -> None:
    builder, words = keyed_words()
    words.where(len).sink("a", serdes.string)
    words.sink("b", lambda key, word: f"{key}{word}".encode())
    words.sink("b", serdes.string)
    sinks = builder.build().sinks
    assert [sink.name for sink in sinks] == ["sink-a", "sink-b", "sink-b-2"]
    assert [sink.parents for sink in sinks] == [
        ("where-words",),
        ("key_by-words",),
        ("key_by-words",),
    ]


def test_a_builder_builds_again_and_on() -> None:
    builder, words = keyed_words()
    words.count()
    first = builder.build()
    assert builder.build() == first
    words.sink("out", serdes.string)
    assert names(builder.build()) == [*names(first), "sink-out"]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.map(lambda key, value: (key, value)),
        lambda s: s.map_values(len),
        lambda s: s.flat_map(lambda key, value: [(key, value)]),
        lambda s: s.flat_map_values(list),
        lambda s: s.where(len),
        lambda s: s.peek(print),
        lambda s: s.key_by(len),
        lambda s: s.count(),
        lambda s: s.sum(),
        lambda s: s.reduce(max),
        lambda s: s.aggregate(Longest),
    ],
)
def test_every_operator_takes_a_name_in_its_chain(
    build: Callable[[Any], Any], request: pytest.FixtureRequest
) -> None:
    builder, words = keyed_words()
    words.sink("copies", serdes.string)
    node = build(words)
    assert builder.build().operator(node.name).parents == ("key_by-words",)


def test_counts_ship_no_values_and_keep_ints() -> None:
    builder, words = keyed_words()
    words.map_values(lambda word: Order(word, 1)).count()
    operator = aggregate_of(builder.build())
    assert (operator.state_serde, operator.aggregation.value_serde) == (serdes.int, serdes.nothing)


def price(order: Order) -> int:
    return order.price


def exact_price(order: Order) -> Decimal:
    return Decimal(order.price)


@pytest.mark.parametrize(("select", "state"), [(price, serdes.int), (exact_price, serdes.plain)])
def test_sums_keep_numbers_by_the_selectors_type(select: Any, state: serdes.Serde[Any]) -> None:
    builder = StreamBuilder("job")
    builder.source("orders", read_order).key_by(lambda order: order.item).sum(select)
    assert repr(aggregate_of(builder.build()).state_serde) == repr(state)


def test_reduce_uses_the_serde_of_the_source() -> None:
    builder = StreamBuilder("job")
    orders = builder.source("orders", serdes.json_of(Order)).where(lambda order: order.price)
    orders.key_by(lambda order: order.item).reduce(dearest)
    operator = aggregate_of(builder.build())
    assert repr(operator.aggregation.value_serde) == repr(operator.state_serde) == "json_of(Order)"


def test_reduce_falls_back_to_plain_data_where_nothing_is_known() -> None:
    builder = StreamBuilder("job")
    builder.source("orders", serdes.json).key_by(str).reduce(lambda left, right: left)
    assert repr(aggregate_of(builder.build()).aggregation.value_serde) == "plain"


def test_a_declared_serde_wins() -> None:
    builder, words = keyed_words()
    words.map_values(lambda word: Order(word, 1), serde=serdes.json_of(Order)).reduce(dearest)
    assert repr(aggregate_of(builder.build()).aggregation.value_serde) == "json_of(Order)"


def make_order(word: str) -> Order:
    return Order(word, 1)


class Parcel:
    """What no serde is known for."""


def make_parcel(word: str) -> Parcel:
    return Parcel()


def make_parcels(word: str) -> Iterable[Parcel]:
    return [Parcel()]


def make_pair(key: str, word: str) -> tuple[str, Parcel]:
    return key, Parcel()


@pytest.mark.parametrize(
    ("make", "maker"),
    [
        (lambda s: s.map_values(make_parcel), "map_values-words"),
        (lambda s: s.flat_map_values(make_parcels), "flat_map_values-words"),
        (lambda s: s.map(make_pair).group_by_key(), "map-words"),
        (lambda s: s.map_values(functools.partial(make_parcel)), "map_values-words"),
    ],
)
@pytest.mark.parametrize(
    ("aggregate", "needer"),
    [
        (lambda s: s.reduce(max), "reduce-words"),
        (lambda s: s.sum(price, emit="each"), "sum-words"),
        (lambda s: s.aggregate(Longest), "aggregate-words"),
        (lambda s: s.aggregate(Merging, emit="each"), "aggregate-words"),
    ],
)
def test_a_known_type_without_serde_is_an_error_where_it_must_travel(
    make: Callable[[Any], Any], maker: str, aggregate: Callable[[Any], Any], needer: str
) -> None:
    _, words = keyed_words()
    message = (
        rf"operator '{maker}' \(made at .*{HERE}:\d+\) emits values of type Parcel, and '{needer}'"
        r" needs them in the partition of their key, but no serde is known for Parcel"
        r"\n.*make Parcel a dataclass .*, or name a serde where the values are made: serde="
    )
    with pytest.raises(TopologyError, match=message):
        aggregate(make(words))


@pytest.mark.parametrize(
    "aggregate", [lambda s: s.count(), lambda s: s.sum(price), lambda s: s.aggregate(Merging)]
)
def test_values_that_are_combined_first_need_no_serde(aggregate: Callable[[Any], Any]) -> None:
    builder, words = keyed_words()
    aggregate(words.map_values(make_parcel))
    assert builder.build().stateful


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.key_by(make_order),
        lambda s: s.map(lambda key, value: (key, value)).key_by(make_order),
        lambda s: s.map(make_keyed).sink("out", serdes.string),
        lambda s: s.flat_map(make_many_keyed).group_by_key(),
    ],
)
def test_keys_of_a_known_type_that_is_not_plain_are_an_error(use: Callable[[Any], Any]) -> None:
    _, words = keyed_words()
    with pytest.raises(TopologyError, match=r"emits keys of type Order.*\n.*identifies the Order"):
        use(words)


def make_keyed(key: str, word: str) -> tuple[Order, str]:
    return Order(word, 1), word


def make_many_keyed(key: str, word: str) -> list[tuple[Order, str]]:
    return [make_keyed(key, word)]


def test_types_of_local_classes_are_understood() -> None:
    class Local:
        pass

    def make(word: str) -> Local:
        return Local()

    _, words = keyed_words()
    with pytest.raises(TopologyError, match="of type Local"):
        words.map_values(make).reduce(dearest)


def read_keyed_parcel(body: bytes) -> Keyed[str, Parcel]:
    return Keyed("parcel", Parcel())


def test_types_of_a_keyed_deserializer_are_understood() -> None:
    builder = StreamBuilder("job")
    parcels = builder.source("parcels", read_keyed_parcel)
    with pytest.raises(TopologyError, match=r"'source-parcels'.*of type Parcel"):
        parcels.group_by_key().reduce(dearest)


@pytest.mark.parametrize("accumulator", [Longest, Longest("a"), lambda: Longest("a")])
def test_accumulators_are_made_from_a_class_a_factory_or_a_prototype(accumulator: Any) -> None:
    builder, words = keyed_words()
    words.aggregate(accumulator)
    operator = aggregate_of(builder.build())
    assert operator.aggregation.accumulator is not None
    first, second = operator.aggregation.accumulator(), operator.aggregation.accumulator()
    first.add("abc")
    assert (first.result(), len(second.result()) < 2) == ("abc", True)
    copy = operator.state_serde.deserialize(operator.state_serde.serialize(first))
    assert copy.result() == "abc"


@pytest.mark.parametrize(
    ("accumulator", "message"),
    [
        (Needy, r"aggregate at .* calls function\(\), which Needy does not accept"),
        (Raising, r"aggregate at .* could not make an accumulator: KeyError: 'home'"),
        (Odd, r"the state of Odd cannot be written by serde plain: builtins.object is not plain"),
    ],
)
def test_accumulators_that_cannot_work_are_refused(accumulator: Any, message: str) -> None:
    _, words = keyed_words()
    with pytest.raises(TopologyError, match=message):
        words.aggregate(accumulator)


@pytest.mark.parametrize("accumulator", [dict, lambda: 3])
def test_what_makes_no_accumulator_is_refused(accumulator: Any) -> None:
    _, words = keyed_words()
    with pytest.raises(TopologyError, match="needs an Accumulator, or a function that makes"):
        words.aggregate(accumulator)


async def awaiting(value: str) -> str:
    return value


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda s: s.map_values("upper"), r"map_values at .* needs a function, not 'upper'"),
        (lambda s: s.map_values(awaiting), r"cannot await awaiting, a coroutine function"),
        (lambda s: s.map(lambda a, b, c: a), r"map at .* calls function\(value\), which"),
        (lambda s: s.where(lambda a, b, c: c), r"where at .* calls function\(value\)"),
        (lambda s: s.reduce(len), r"reduce at .* calls function\(result, value\), which len"),
        (lambda s: s.count(emit="close"), r"count at .* has emit='close'\n.*'update'.*'each'"),
        (lambda s: s.sink("out", "json"), r"sink to 'out' at .* a serializer is a serde or"),
        (lambda s: s.map_values(len, name=""), r"name=''"),
    ],
)
def test_calls_that_cannot_work_are_refused_at_once(
    use: Callable[[Any], Any], message: str
) -> None:
    _, words = keyed_words()
    with pytest.raises(TopologyError, match=message):
        use(words)


@pytest.mark.parametrize("deserializer", ["utf-8", lambda: None])
def test_a_deserializer_must_take_the_body(deserializer: Any) -> None:
    with pytest.raises(
        TopologyError, match=r"source at .*(needs a function|calls function\(body\))"
    ):
        StreamBuilder("job").source("lines", deserializer)


@pytest.mark.parametrize("name", ["map_values", "where", "sink", "count", "to_stream"])
def test_nothing_follows_a_sink(name: str) -> None:
    _, words = keyed_words()
    end = words.sink("out", serdes.string)
    message = rf"{name} at .*{HERE}:\d+ comes after sink 'sink-out' \(made at .*{HERE}:\d+\)"
    with pytest.raises(TopologyError, match=message):
        getattr(end, name)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        getattr(end, "colour")  # noqa: B009 - mypy knows that there is none


def test_the_end_of_a_stream_knows_its_sink() -> None:
    builder, words = keyed_words()
    end = words.sink("out", serdes.string)
    operator: Operator = builder.build().operator(end.name)
    assert isinstance(operator, Sink)


def test_a_job_needs_a_name_that_topics_can_have() -> None:
    with pytest.raises(TopologyError, match=r"job name 'word count' may hold only letters"):
        StreamBuilder("word count")
    with pytest.raises(TopologyError, match=r"job name '' is empty"):
        StreamBuilder("")
    with pytest.raises(TopologyError, match=r"at most 115 leave room"):
        StreamBuilder("x" * 116)
    StreamBuilder("x" * 115)


def test_times_of_a_stream_may_be_texts() -> None:
    def built(second: timedelta | str, minute: timedelta | str) -> list[Operator]:
        builder = StreamBuilder("job")
        left = builder.source("left", serdes.json, idle_timeout=second, max_future=minute)
        timed = left.select_timestamp(len, allowed_lateness=second).key_by(str)
        timed.window(hopping(minute, second, offset=second), grace=second).count().sink("counts")
        right = builder.source("right", serdes.json, allowed_lateness=second).key_by(str)
        timed.join(right, divmod, within=(second, minute), grace=second)
        return list(builder.build().operators)

    texts, times = built("1 s", "1m"), built(timedelta(seconds=1), timedelta(minutes=1))
    assert repr(texts) == repr(times)


def test_a_text_that_is_no_time_is_refused_with_what_one_is() -> None:
    with pytest.raises(TopologyError, match=r"size is '5x': a duration is .* 1h30m, 1 d or PT5M"):
        tumbling("5x")
    with pytest.raises(TopologyError, match=r"idle_timeout of source .* is '5x': a duration is"):
        StreamBuilder("job").source("left", serdes.json, idle_timeout="5x")
