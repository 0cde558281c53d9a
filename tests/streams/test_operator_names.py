"""Every method that adds an operator takes its name, and gives the operator that name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pytest

import headrace.streams
from headrace import Processor, StreamBuilder, count, serdes, tumbling
from headrace.streams import KeyedStream, Stream
from headrace.topology import Accumulator

MINUTE = timedelta(minutes=1)

#: Methods that describe what is to come, or ask, and add no operator.
ADD_NOTHING = {
    "ColumnGroups.window",
    "Stream.join",
    "Stream.left_join",
    "Stream.outer_join",
    "KeyedStream.window",
    "Measure.named",
    "ProcessedStream.output",
    "Stream.group_by_key",
    "StreamBuilder.build",
    "StreamJoin.described",
    "StreamJoin.right_key",
    "StreamJoin.grace",
    "StreamJoin.left_key",
    "StreamJoin.window",
    "StreamJoin.within",
    "TableLookup.left_key",
}
#: The builder's side towards the streams; their classes that no user makes or gets.
INSIDE = {"StreamBuilder.add", "StreamBuilder.replace", "StreamBuilder.name_for"}
INSIDE_CLASSES = {"Flow", "Gathering", "Known", "NextOperator"}


@dataclass
class Reading:
    """Values with columns."""

    k: str
    n: int


class Add(Accumulator[Any, int]):
    total = 0

    def add(self, value: Any) -> None:
        self.total += 1

    def result(self) -> int:
        return self.total


class Pass(Processor[Any, Any, Any, Any]):
    def init(self, context: Any) -> None:
        pass

    def process(self, record: Any) -> None:
        pass


async def later(value: Any) -> Any:
    return value


Arguments = tuple[list[Any], dict[str, Any]]


class Places:
    """A thing of each class of the front door, over a builder of its own."""

    def __init__(self) -> None:
        self.builder = StreamBuilder("job")
        self.stream: Stream[Any, Any] = self.builder.source("left", serdes.json(Reading))
        self.other: Stream[Any, Any] = self.builder.source("right", serdes.json(Reading))
        self.keyed: KeyedStream[str, Any] = self.stream.key_by(lambda value: value.k)
        self.others: KeyedStream[str, Any] = self.other.key_by(lambda value: value.k)
        self.table = self.builder.table("rows", serdes.json)
        self.windowed = self.keyed.window(tumbling(MINUTE))

    MADE: ClassVar[dict[str, Callable[[Places], Any]]] = {
        "StreamBuilder": lambda self: self.builder,
        "KeyedStream": lambda self: self.keyed,
        "Stream": lambda self: self.stream,
        "Table": lambda self: self.table,
        "WindowedStream": lambda self: self.windowed,
        "WindowedTable": lambda self: self.windowed.count(),
        "StreamJoin": lambda self: self.keyed.join(self.others).within(MINUTE),
        "JoinedStream": lambda self: self.keyed.join(
            self.others, lambda left, right: left, within=MINUTE
        ),
        "TableLookup": lambda self: self.keyed.join(self.table),
        "ColumnGroups": lambda self: self.stream.group_by("k"),
        "WindowedGroups": lambda self: self.stream.group_by("k").window(tumbling(MINUTE)),
        "WindowedColumns": lambda self: (
            self.stream.group_by("k").window(tumbling(MINUTE)).agg(count())
        ),
    }


def arguments_of(places: Places) -> dict[str, Arguments]:
    """What the methods are called with that need something."""
    return {
        **dict.fromkeys(["for_each_batch", "sink_dataframe"], ([lambda records, token: None], {})),
        "map": ([lambda key, value: (key, value)], {}),
        "flat_map": ([lambda key, value: [(key, value)]], {}),
        "map_async": ([later], {}),
        "flat_map_values": ([lambda value: [value]], {}),
        "reduce": ([lambda left, right: left], {}),
        "aggregate": ([Add], {}),
        "apply": ([lambda left, right: left], {}),
        "join": ([places.table, lambda left, right: left], {}),
        "left_join": ([places.table, lambda left, right: left], {}),
        "outer_join": ([places.table, lambda left, right: left], {}),
        "merge": ([places.other], {}),
        "branch": ([], {"large": lambda value: value.n > 3}),
        "group_by": (["k"], {}),
        "select": (["k"], {}),
        "agg": ([count()], {}),
        "top": ([3, lambda value: value.n], {}),
        "sum": ([lambda value: value.n], {}),
        "count_distinct": ([lambda value: value.n], {}),
        "process": ([Pass], {}),
        "sink": (["out", serdes.json], {}),
        "source": (["more", serdes.json], {}),
        "table": (["more", serdes.json], {}),
        "global_table": (["more", serdes.json], {}),
        "sql": (["select k from readings"], {"readings": places.stream}),
        **dict.fromkeys(["where", "map_values", "peek", "key_by"], ([lambda value: value], {})),
        "select_timestamp": ([lambda value: value.n], {}),
    }


def front_doors() -> Iterator[type]:
    seen = set()
    for module in pkgutil.walk_packages(headrace.streams.__path__, "headrace.streams."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if (
                inspect.isclass(kind)
                and kind.__module__.startswith("headrace.streams")
                and not name.startswith("_")
                and name not in INSIDE_CLASSES
                and kind not in seen
            ):
                seen.add(kind)
                yield kind


def methods() -> dict[str, tuple[type, Any]]:
    """Every public method of the front doors, by the class that defines it, with its first owner."""
    found: dict[str, tuple[type, Any]] = {}
    for kind in front_doors():
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or not function.__module__.startswith("headrace.streams"):
                continue
            if function.__qualname__ not in INSIDE:
                found.setdefault(function.__qualname__, (kind, function))
    return found


def owner_of(qualname: str) -> str:
    """The class of :class:`Places` that has a method, of its own or by inheritance."""
    method = qualname.split(".")[1]
    kinds = {kind.__name__: kind for kind in front_doors()}
    return next(
        name
        for name in Places.MADE
        if getattr(getattr(kinds[name], method, None), "__qualname__", "") == qualname
    )


def is_callable_here(qualname: str) -> bool:
    """Whether this test knows what to call a method with."""
    _, function = methods()[qualname]
    _, *parameters = inspect.signature(function).parameters.values()
    needed = [
        one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    return not needed or qualname.split(".")[1] in arguments_of(Places())


NAMED = sorted(set(methods()) - ADD_NOTHING)


@pytest.mark.parametrize("qualname", NAMED)
def test_method_takes_the_name_of_its_operator(qualname: str) -> None:
    _, function = methods()[qualname]
    parameter = inspect.signature(function).parameters.get("name")
    assert parameter is not None, f"{qualname} adds an operator that nobody can name"
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
    assert parameter.default is None


@pytest.mark.parametrize("qualname", [each for each in NAMED if is_callable_here(each)])
def test_operator_has_the_name_that_was_given(qualname: str) -> None:
    method = qualname.split(".")[1]
    places = Places()
    thing = Places.MADE[owner_of(qualname)](places)
    arguments, more = arguments_of(places).get(method, ([], {}))
    before = {operator.name for operator in places.builder.operators}
    getattr(thing, method)(*arguments, **more, name="given")
    added = {operator.name for operator in places.builder.operators} - before
    assert any(name == "given" or name.startswith("given-") for name in added)
    assert all(name.startswith("given") for name in added)


def test_what_is_said_to_add_nothing_is_there() -> None:
    assert set(methods()) >= ADD_NOTHING
