from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import Accumulator, StreamBuilder, TopologyError, serdes

HERE = Path(__file__).name


def build(function: Callable[[str], Any]) -> None:
    builder = StreamBuilder("job")
    builder.source("lines", serdes.string).map_values(function).sink("out", serdes.json)
    builder.build()


class Holder:
    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock: Any = threading.Lock()

    def call(self, value: str) -> str:
        with self.lock:
            return value


class Failing:
    def __call__(self, value: str) -> str:
        return value

    def __reduce__(self) -> str:
        message = "this object stays here"
        raise ValueError(message)


def captured() -> Callable[[str], Any]:
    lock = threading.Lock()
    return lambda value: (value, lock)


def nested() -> Callable[[str], Any]:
    shop = {"locks": [threading.Lock()]}
    return lambda value: shop[value]


def through_a_helper() -> Callable[[str], Any]:
    lock = threading.Lock()

    def helper(value: str) -> object:
        return value, lock

    return lambda value: helper(value)  # noqa: PLW0108 - the helper is what is captured


def by_default() -> Callable[[str], Any]:
    lock = threading.Lock()

    def function(value: str, guard: object = lock) -> object:
        return value, guard

    return function


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (captured(), r"the _thread\.lock in variable 'lock' of the function at .*:\d+"),
        (
            nested(),
            r"the _thread\.lock in item 0 of item 'locks' of variable 'shop' of the function",
        ),
        (through_a_helper(), r"the _thread\.lock in variable 'lock' of the function at .*:\d+"),
        (by_default(), r"in the default of parameter 'guard' of the function at .*:\d+"),
        (Holder().call, r"in attribute 'lock' of the object of method 'call' of its function"),
        (functools.partial(captured()), r"of the function at .*:\d+"),
        (
            functools.partial(max, threading.Lock()),
            r"the _thread\.lock in argument 0 of its function",
        ),
        (Failing(), r"the .*Failing in its function cannot be pickled \(ValueError: this object"),
    ],
)
def test_what_cannot_be_pickled_is_named_with_the_users_line(
    function: Callable[[str], Any], place: str
) -> None:
    message = (
        rf"operator 'map_values-lines' \(made at .*{HERE}:\d+\) cannot be sent to Spark's workers:"
        rf" .*{place}"
    )
    with pytest.raises(TopologyError, match=message):
        build(function)


def test_lambdas_and_local_functions_are_fine() -> None:
    factor = 3

    def triple(value: str) -> str:
        return value * factor

    build(triple)
    build(lambda value: triple(value) + "!")


class Locked(Accumulator[str, int]):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def add(self, value: str) -> None:
        pass

    def result(self) -> int:
        return 0

    def state(self) -> object:
        return {}


def test_accumulators_are_checked_too() -> None:
    builder = StreamBuilder("job")
    builder.source("lines", serdes.string).key_by(len).aggregate(Locked())
    with pytest.raises(
        TopologyError, match=r"'aggregate-lines' .* in attribute 'lock' of attribute"
    ):
        builder.build()
