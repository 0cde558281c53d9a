"""Merging, splitting and moving streams, awaiting calls, and where sinks write."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import StreamBuilder, TopologyTestDriver, serdes
from headrace.errors import HeadraceError, TopologyError, UserCodeError
from headrace.runtime.testing import TestRecord


def results(driver: TopologyTestDriver, topic: str) -> list[tuple[Any, Any]]:
    return [(r.key, r.value) for r in driver.output(topic, serdes.plain).read_all()]


def records(driver: TopologyTestDriver, topic: str) -> list[TestRecord[Any, Any]]:
    return driver.output(topic, serdes.plain).read_all()


def test_merge_counts_the_records_of_all_its_streams() -> None:
    builder = StreamBuilder("job")
    web = builder.source("web", serdes.string).key_by(str.lower)
    shop = builder.source("shop", serdes.string).key_by(str.lower)
    web.merge(shop).group_by_key().count().sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("web", serdes.string).send("a")
        driver.input("shop", serdes.string).send("A")
        assert results(driver, "out") == [("a", 1), ("a", 2)]


def test_merge_takes_streams_from_before_and_behind_a_shuffle() -> None:
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string).key_by(str.lower)
    counts = words.count().to_stream().map_values(str)
    words.merge(counts).sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("words", serdes.string).send("B")
        assert sorted(results(driver, "out")) == [("b", "1"), ("b", "B")]


def test_merge_of_a_stream_with_itself_gives_every_record_twice() -> None:
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string)
    words.merge(words).sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("words", serdes.string).send("a")
        assert results(driver, "out") == [(None, "a"), (None, "a")]


def test_records_of_one_cause_are_merged_in_the_order_of_the_streams() -> None:
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string)
    louder = words.map_values(str.upper)
    louder.merge(words).sink("out", serdes.plain)
    words.merge(louder).sink("other", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("words", serdes.string).pipe(["a", "b"])
        assert [r.value for r in records(driver, "out")] == ["A", "a", "B", "b"]
        assert [r.value for r in records(driver, "other")] == ["a", "A", "b", "B"]


def test_merge_refuses_streams_of_another_builder() -> None:
    one = StreamBuilder("one").source("a", serdes.string)
    two = StreamBuilder("two").source("a", serdes.string)
    with pytest.raises(TopologyError, match="'source-a' of builder 'two' into builder 'one'"):
        one.merge(two)
    with pytest.raises(TopologyError, match="names no other stream"):
        one.merge()


def test_branch_sends_each_record_to_the_first_that_takes_it() -> None:
    builder = StreamBuilder("job")
    parts = builder.source("numbers", serdes.int).branch(
        small=lambda n: n < 10, even=lambda n: n % 2 == 0
    )
    for name, stream in parts.items():
        stream.sink(name, serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        numbers = driver.input("numbers", serdes.int)
        with driver.batch():
            for number in (4, 12, 13, 5, 40):
                numbers.send(number)
        found = {name: [value for _, value in results(driver, name)] for name in parts}
    assert found == {"small": [4, 5], "even": [12, 40], "rest": [13]}


def test_branches_of_a_keyed_stream_keep_its_keys() -> None:
    builder = StreamBuilder("job")
    words = builder.source("words", serdes.string).key_by(str.lower)
    long = words.branch(long=lambda key, word: len(key) > 3, default="short").long
    long.count().sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        for word in ("Word", "an", "word"):
            driver.input("words", serdes.string).send(word)
        assert results(driver, "out") == [("word", 1), ("word", 2)]


def test_branch_refuses_what_cannot_be_parted() -> None:
    words = StreamBuilder("job").source("words", serdes.string)
    with pytest.raises(TopologyError, match="has no predicate"):
        words.branch()
    with pytest.raises(TopologyError, match="gives its default 'rest' a predicate"):
        words.branch(rest=str.strip)
    with pytest.raises(AttributeError, match="no branch 'long': there are short, rest"):
        words.branch(short=str.strip).long  # noqa: B018 - the look-up is the test


def test_keyless_records_are_spread_over_partitions_and_keyed_ones_keep_their_order() -> None:
    builder = StreamBuilder("job")
    numbers = builder.source("numbers", serdes.int)
    numbers.repartition().sink("spread", serdes.plain)
    numbers.repartition(lambda n: n % 3, name="by").sink("keyed", serdes.plain)
    topology = builder.build()
    assert [len(stage.operators) for stage in topology.plan.stages] == [2, 4]
    with TopologyTestDriver(topology, partitions=4) as driver:
        source = driver.input("numbers", serdes.int)
        with driver.batch():
            for number in range(200):
                source.send(number)
        spread = records(driver, "spread")
        keyed = results(driver, "keyed")
    assert sorted(record.value for record in spread) == list(range(200))
    for key in range(3):
        assert [v for k, v in keyed if k == key] == list(range(key, 200, 3))


def test_repartition_by_key_needs_no_second_shuffle_but_fewer_partitions_do() -> None:
    def stages(partitions: int | None) -> int:
        builder = StreamBuilder("job")
        words = builder.source("words", serdes.string).repartition(str.lower, partitions=partitions)
        words.count().sink("out", serdes.plain)
        topology = builder.build()
        with TopologyTestDriver(topology, partitions=3) as driver:
            for word in ("a", "b", "A"):
                driver.input("words", serdes.string).send(word)
            assert results(driver, "out") == [("a", 1), ("b", 1), ("a", 2)]
        return len(topology.plan.stages)

    assert stages(None) == 2
    assert stages(2) == 3


def test_async_calls_wait_together_and_give_results_in_order() -> None:
    waiting, most = 0, 0

    async def look_up(number: int) -> int:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.001 * (5 - number % 5))
        waiting -= 1
        return number * 10

    builder = StreamBuilder("job")
    numbers = builder.source("numbers", serdes.int)
    numbers.map_async(look_up, max_in_flight=4).sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.input("numbers", serdes.int)
        with driver.batch():
            for number in range(20):
                source.send(number)
        assert [value for _, value in results(driver, "out")] == [n * 10 for n in range(20)]
    assert most == 4


def test_error_of_an_async_call_names_the_first_record_that_failed() -> None:
    async def look_up(number: int) -> int:
        await asyncio.sleep(0.001 * (5 - number))
        if number in (2, 3):
            message = f"no {number}"
            raise LookupError(message)
        return number

    builder = StreamBuilder("job")
    builder.source("numbers", serdes.int).map_async(look_up).sink("out", serdes.plain)
    problem = r"(?s)offset 2: LookupError: no 2.*test_flow.py"
    with TopologyTestDriver(builder.build()) as driver:
        with pytest.raises(UserCodeError, match=problem), driver.batch():
            driver.input("numbers", serdes.int).pipe(range(5))
        assert results(driver, "out") == []


def test_async_calls_work_inside_a_running_loop() -> None:
    async def shout(word: str) -> str:
        return word.upper()

    async def drive() -> list[tuple[Any, Any]]:
        builder = StreamBuilder("job")
        builder.source("words", serdes.string).map_async(shout).sink("out", serdes.plain)
        with TopologyTestDriver(builder.build()) as driver:
            driver.input("words", serdes.string).send("a")
            return results(driver, "out")

    assert asyncio.run(drive()) == [(None, "A")]


def test_functions_may_take_the_key_beside_the_value() -> None:
    builder = StreamBuilder("job")
    (
        builder.source("words", serdes.with_key(serdes.string))
        .where(lambda key, word: key != word)
        .map_values(lambda key, word: f"{key}={word}")
        .flat_map_values(lambda key, text: [text] * len(key))
        .key_by(lambda key, text: (key, text))
        .sink("out", serdes.plain)
    )
    with TopologyTestDriver(builder.build()) as driver:
        words = driver.input("words", serdes.string)
        words.send("a", key="a")
        words.send("x", key="kk")
        assert results(driver, "out") == [(("kk", "kk=x"), "kk=x")] * 2


@pytest.mark.parametrize(
    ("build", "given"),
    [
        (lambda words: words.map(lambda word: (len(word), word)), [(2, "ab")]),
        (lambda words: words.map(lambda key, word: (word, key)), [("ab", "k")]),
        (
            lambda words: words.flat_map(lambda word: [(each, 1) for each in word]),
            [("a", 1), ("b", 1)],
        ),
        (lambda words: words.flat_map(lambda key, word: [(word, key)] * 2), [("ab", "k")] * 2),
    ],
)
def test_map_takes_the_value_or_key_and_value(build: Any, given: list[Any]) -> None:
    builder = StreamBuilder("job")
    build(builder.source("words", serdes.with_key(serdes.string))).sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("words", serdes.string).send("ab", key="k")
        assert results(driver, "out") == given


def test_print_shows_records_and_passes_them_on(capsys: pytest.CaptureFixture[str]) -> None:
    builder = StreamBuilder("job")
    builder.source("words", serdes.string).key_by(len).print(label="> ").sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("words", serdes.string).send("abc")
        assert results(driver, "out") == [(3, "abc")]
    assert capsys.readouterr().out == "> (key=3, value='abc')\n"


def routed() -> TopologyTestDriver:
    builder = StreamBuilder("job")
    builder.source("orders", serdes.plain).sink(
        lambda order: order["to"],
        serdes.plain,
        topics=["left", "right"],
        key=lambda order: order["id"],
        partition=lambda order: order["queue"],
    )
    return TopologyTestDriver(builder.build(), partitions=3)


def test_sink_chooses_topic_key_and_queue_of_each_record() -> None:
    with routed() as driver:
        orders = driver.input("orders", serdes.plain)
        with driver.batch():
            orders.send({"to": "right", "id": 1, "queue": 2})
            orders.send({"to": "left", "id": 2, "queue": 0})
            orders.send({"to": "right", "id": 3, "queue": 0})
        assert [r.key for r in records(driver, "left")] == [2]
        # The queue with the lower number comes first.
        assert [r.key for r in records(driver, "right")] == [3, 1]


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        ({"to": "up", "id": 1, "queue": 0}, "chose topic 'up', not one of"),
        ({"to": "left", "id": 1, "queue": 3}, "gave 3 for a queue of 'left': 0 to 2"),
        ({"to": "left", "id": 1, "queue": "a"}, "gave 'a' for a queue"),
        ({"to": "left", "queue": 0}, "KeyError: 'id'"),
    ],
)
def test_sink_names_the_record_that_it_cannot_place(order: dict[str, Any], problem: str) -> None:
    with routed() as driver, pytest.raises(HeadraceError, match=f"(?s)offset 0: .*{problem}"):
        driver.input("orders", serdes.plain).send(order)


def test_sink_topics_are_checked_like_any_others() -> None:
    builder = StreamBuilder("job")
    orders = builder.source("orders", serdes.plain)
    with pytest.raises(TopologyError, match="a function that chooses the topic needs topics="):
        orders.sink(str, serdes.plain)
    with pytest.raises(TopologyError, match="a function that chooses the topic needs topics="):
        orders.sink("out", serdes.plain, topics=["out"])
    orders.sink(str, serdes.plain, topics=["a", "orders"])
    with pytest.raises(TopologyError, match="writes topic 'orders', which"):
        builder.build()


def test_description_shows_all_topics_of_a_sink_and_how_records_move() -> None:
    builder = StreamBuilder("job")
    moved = builder.source("in", serdes.string).repartition(partitions=2)
    moved.sink(lambda line: line[0], serdes.string, topics=["a", "b"])
    described = builder.build().describe()
    assert "repartition-in  <= source-in (moved), evenly, to 2 partitions" in described
    assert "writes a or b, serializer string" in described
    assert "written by sink-a\n    b " in described


def test_records_that_fail_are_left_out_where_the_policy_is_to_skip() -> None:
    async def halved(number: int) -> int:
        return 12 // number

    builder = StreamBuilder("job")
    parts = (
        builder.source("numbers", serdes.int)
        .map_async(halved, on_error="skip")
        .branch(large=lambda n: 60 / (n - 6) > 0, on_error="skip")
    )
    parts.large.sink(
        "out", serdes.plain, partition=lambda n: n - 11, key=lambda n: n, on_error="skip"
    )
    parts.rest.sink("rest", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        with driver.batch():
            driver.input("numbers", serdes.int).pipe([0, 1, 2, 3, -1])
        assert results(driver, "out") == [(12, 12)]
        assert results(driver, "rest") == [(None, 4), (None, -12)]
        counted = {name: driver.counters[f"skipped:{name}-numbers"] for name in ("map_async",)}
        assert counted == {"map_async": 1}
        assert driver.counters["skipped"] == 2


def test_records_whose_new_key_cannot_be_told_follow_the_policy_of_the_move() -> None:
    builder = StreamBuilder("job")
    numbers = builder.source("numbers", serdes.int)
    numbers.repartition(lambda n: 12 // n, on_error="skip").sink("out", serdes.plain)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("numbers", serdes.int).pipe([3, 0, 4])
        assert results(driver, "out") == [(4, 3), (3, 4)]
        assert driver.counters["skipped"] == 1
