"""What the front door says to those who take a wrong step: what, where, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import (
    Processor,
    Record,
    Stream,
    StreamBuilder,
    TopologyError,
    TopologyTestDriver,
    count_window,
    serdes,
    session,
    tumbling,
)
from headrace.errors import TopicNotFoundError

MINUTE = timedelta(minutes=1)
HERE = Path(__file__).name


def orders(name: str = "orders") -> Any:
    return StreamBuilder("job").source(name, serdes.json)


def two() -> tuple[Any, Any]:
    builder = StreamBuilder("job")
    return builder.source("orders", serdes.json), builder.source("payments", serdes.json)


def windowed() -> Any:
    return orders().key_by(len).window(tumbling(MINUTE)).count()


def joined(**options: Any) -> Any:
    left, right = two()
    return left.join(right, lambda one, other: one, left_key=len, right_key=len, **options)


def unkeyed_join() -> Any:
    left, right = two()
    return left.join(right, lambda one, other: one)


def any_value(*values: Any) -> Any:
    return values


WRONG: list[tuple[Callable[[], Any], type[Exception], str, str]] = [
    (
        lambda: orders().count(),
        AttributeError,
        "'Stream' object has no attribute 'count'",
        "key_by",
    ),
    (lambda: orders().window, AttributeError, "no attribute 'window'", "group_by_key()"),
    (lambda: orders().key_by(len).late(), AttributeError, "no attribute 'late'", "joins by time"),
    (lambda: orders().key_by(len).count().peek, AttributeError, "'Table' object", "to_stream()"),
    (lambda: windowed().map_values, AttributeError, "'WindowedTable' object", "to_stream()"),
    (lambda: orders().join(orders()).sink, AttributeError, "'StreamJoin' object", "apply("),
    (lambda: orders().group_by_key(), TopologyError, "needs records with keys", "key_by(...)"),
    (lambda: orders().to_table(), TopologyError, "needs records with keys", "serdes.with_key"),
    (unkeyed_join, TopologyError, "the join at", "left_key and right_key"),
    (lambda: orders().join("x", any_value), TopologyError, "Table, not 'x'", "builder.source"),
    (lambda: orders().join(windowed(), any_value), TopologyError, "takes a Stream", "to_stream()"),
    (lambda: orders().merge("x"), TopologyError, "merge at .* takes a Stream, not 'x'", "source("),
    (
        lambda: orders().key_by(len).count().join(orders(), any_value),
        TopologyError,
        "takes a Table, not <stream 'source-orders'>",
        "stream.to_table()",
    ),
    (lambda: joined(left_kye=len), TopologyError, "takes no option 'left_kye'", "mean 'left_key'"),
    (lambda: joined(xyz=len), TopologyError, "no option 'xyz'", "it takes left_key, right_key"),
    (
        lambda: joined(within=5),
        TopologyError,
        "within at .* is 5: give a timedelta, or text",
        "minutes=",
    ),
    (
        lambda: joined(grace=5),
        TopologyError,
        "grace at .* is 5: give a timedelta, or text",
        "minutes=",
    ),
    (lambda: tumbling(60), TopologyError, "size is 60: give a timedelta, or text", "minutes="),  # type: ignore[arg-type]
    (lambda: session(-MINUTE), TopologyError, "a window's gap is -1 day", "above 0"),
    (lambda: count_window(0.5), TopologyError, "a window cannot have 0.5 records", "at least 1"),  # type: ignore[arg-type]
    (
        lambda: orders().key_by(len).window(tumbling(MINUTE), grace=5).count(),
        TopologyError,
        "grace is 5: give a timedelta, or text",
        "timedelta",
    ),
    (lambda: orders(5), TopologyError, "source at .* not 5", "'orders'"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("step", "kind", "message", "hint"), WRONG)
def test_a_wrong_step_is_refused_with_what_to_do(
    step: Callable[[], Any], kind: type[Exception], message: str, hint: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        step()
    assert hint in str(caught.value)


def test_what_no_step_has_is_missed_without_advice() -> None:
    with pytest.raises(AttributeError, match=r"'Stream' object has no attribute 'nothing'$"):
        orders().nothing  # noqa: B018
    assert not hasattr(orders(), "count")
    assert hasattr(orders().key_by(len), "count")


def test_a_topic_that_cannot_be_is_named_and_not_the_operator_named_after_it() -> None:
    builder = StreamBuilder("job")
    builder.source("orders", serdes.json).sink("bad topic!", serdes.json)
    with pytest.raises(TopologyError, match="the topic 'bad topic!' of sink") as caught:
        builder.build()
    assert "change the topic" in str(caught.value)


def test_what_makes_no_processor_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"process at .* needs a class of processors"):
        orders().process(lambda record: record)


class Halves(Processor[None, int, None, int]):
    def init(self, context: Any) -> None:
        self.context = context

    def process(self, record: Record[None, int]) -> None:
        self.context.forward(record, child="odd" if record.value % 2 else "")


def test_a_chain_goes_on_behind_a_join_and_keeps_its_late_records() -> None:
    left, right = two()
    pairs = left.left_join(
        right, lambda one, other: (one, other), left_key=len, right_key=len, within=MINUTE
    )
    alone = pairs.where(lambda pair: pair[1] is None).peek(lambda pair: None).print()
    alone.sink("alone", serdes.json)
    alone.late().sink("late", serdes.json)
    with TopologyTestDriver(left._flow.builder.build()) as driver:
        sent = driver.input("orders", serdes.json)
        driver.input("payments", serdes.json).send([0], time=driver.now)
        for minutes in (0, 60, 0):
            sent.send([minutes], time=driver.now + minutes * MINUTE)
        driver.input("payments", serdes.json).send([1, 2], time=driver.now + 90 * MINUTE)
        sent.send([3, 4], time=driver.now + 91 * MINUTE)
        assert [r.value for r in driver.output("alone", serdes.json).read_all()] == [[[60], None]]
        assert [r.value for r in driver.output("late", serdes.json).read_all()] == [[0]]


def test_a_chain_goes_on_behind_a_processor_and_keeps_its_outputs() -> None:
    builder = StreamBuilder("job")
    numbers = builder.source("numbers", serdes.int).process(
        Halves, outputs=["odd"], serde=serdes.int
    )
    shown = numbers.where(lambda number: number > 2)
    shown.sink("even", serdes.int)
    shown.output("odd").sink("odd", serdes.int)
    with TopologyTestDriver(builder.build()) as driver:
        driver.input("numbers", serdes.int).pipe([1, 2, 3, 4])
        assert [r.value for r in driver.output("even", serdes.int).read_all()] == [4]
        assert [r.value for r in driver.output("odd", serdes.int).read_all()] == [1, 3]


def copies() -> TopologyTestDriver:
    builder = StreamBuilder("job")
    builder.source("orders", serdes.json).sink("copies", serdes.json)
    return TopologyTestDriver(builder.build())


def test_the_driver_names_what_is_written_and_what_was_not_read() -> None:
    driver = copies()
    with pytest.raises(TopicNotFoundError, match="does not write topic 'copy'") as caught:
        driver.output("copy", serdes.json)
    assert "it writes copies" in str(caught.value)
    with pytest.raises(IndexError, match="topic 'copies' has nothing that was not read"):
        driver.output("copies", serdes.json).read()
    driver.input("orders", serdes.json).pipe([1, 2])
    assert len(driver.output("copies", serdes.json)) == 2


def test_the_driver_takes_no_time_that_could_be_another_one() -> None:
    driver = copies()
    with pytest.raises(ValueError, match="has no time zone"):
        driver.input("orders", serdes.json).send(1, time=datetime(2025, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="does not go back"):
        driver.advance_wall_clock(-MINUTE)


def first_key(value: Any) -> Any:
    return value["nothing"]


def with_both(one: Any, other: Any) -> Any:
    return one["nothing"]


def by_key(stream: Stream[Any, Any]) -> Any:
    return stream.key_by(lambda value: "k")


STEPS: dict[str, Callable[[Any], Any]] = {
    "map": lambda stream: stream.map(lambda key, value: (key, first_key(value))),
    "map_values": lambda stream: stream.map_values(first_key),
    "flat_map": lambda stream: stream.flat_map(lambda key, value: [(key, first_key(value))]),
    "flat_map_values": lambda stream: stream.flat_map_values(lambda value: [first_key(value)]),
    "where": lambda stream: stream.where(first_key),
    "peek": lambda stream: stream.peek(first_key),
    "key_by": lambda stream: stream.key_by(first_key).count().to_stream(),
    "branch": lambda stream: stream.branch(some=first_key).some,
    "select_timestamp": lambda stream: stream.select_timestamp(first_key),
    "repartition": lambda stream: stream.repartition(first_key).map_values(len),
    "count_distinct": lambda stream: by_key(stream).count_distinct(first_key).to_stream(),
    "sum": lambda stream: by_key(stream).sum(first_key).to_stream(),
    "avg": lambda stream: by_key(stream).avg(first_key).to_stream(),
    "min": lambda stream: by_key(stream).min(first_key).to_stream(),
    "max": lambda stream: by_key(stream).max(first_key).to_stream(),
    "top": lambda stream: by_key(stream).top(2, first_key).to_stream(),
    "reduce": lambda stream: by_key(stream).reduce(with_both).to_stream(),
    "windowed": lambda stream: by_key(stream).window(tumbling(MINUTE)).sum(first_key).to_stream(),
    "session": lambda stream: by_key(stream).window(session(MINUTE)).reduce(with_both).to_stream(),
    "join": lambda stream: stream.join(stream, with_both, left_key=str, right_key=str),
    "interval": lambda stream: stream.join(
        stream, with_both, left_key=str, right_key=str, within=MINUTE
    ),
    "left_key": lambda stream: stream.join(stream, with_both, left_key=first_key, right_key=str),
    "lookup": lambda stream: by_key(stream).join(by_key(stream).to_table(), with_both),
    "table": lambda stream: by_key(stream).to_table().map_values(first_key).to_stream(),
}


@pytest.mark.parametrize("kind", STEPS)
def test_an_error_in_a_function_names_its_own_line(kind: str) -> None:
    builder = StreamBuilder("job")
    stream: Any = builder.source("values", serdes.json)
    STEPS[kind](stream).sink("results", serdes.json)
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(Exception, match="KeyError: 'nothing'") as caught,
    ):
        # The second one meets the first where two are needed.
        driver.input("values", serdes.json).pipe([{}, {}])
    function = with_both if "with_both" in str(caught.value) else first_key
    line = inspect.getsourcelines(function)[1] + 1
    assert f"{HERE}:{line} in {function.__name__}: return" in str(caught.value)
    assert "topic 'values', queue 0, offset" in str(caught.value)
