"""Integers beyond 64 bits and decimals in every aggregate, running and in every window."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Context, Decimal
from typing import Any

import pytest

from headrace import (
    StreamBuilder,
    TopologyTestDriver,
    count_window,
    hopping,
    serdes,
    session,
    sliding,
    tumbling,
)
from headrace.topology.windows import Windows
from tests.runtime.windowing import EPOCH, ms

BIG = [2**64, -(2**70), 2**63, 1, 2**70 + 1, 1]
EXACT = [Decimal("1e30"), Decimal("0.1"), Decimal("-1e30"), Decimal("1e-30"), Decimal(2**65)]
WIDE = Context(prec=200)
NUMBERS: dict[str, list[Any]] = {"big": BIG, "decimal": EXACT}


def added(numbers: list[Any]) -> Any:
    # Decimal's own sum rounds to 28 digits.
    places = [Decimal(number).as_tuple().exponent for number in numbers]
    lowest = min(int(place) for place in places)
    scaled = sum(int(Decimal(n).scaleb(-lowest, context=WIDE)) for n in numbers)
    return Decimal(scaled).scaleb(lowest, context=WIDE) if lowest else scaled


def mean(numbers: list[Any]) -> Any:
    return added(numbers) / len(numbers)


Answer = Callable[[list[Any]], Any]
GATHERS: dict[str, tuple[Callable[[Any], Any], Answer]] = {
    "count": (lambda k: k.count(), len),
    "sum": (lambda k: k.sum(), added),
    "avg": (lambda k: k.avg(), mean),
    "min": (lambda k: k.min(), min),
    "max": (lambda k: k.max(), max),
    "top": (lambda k: k.top(2), lambda found: sorted(found)[:-3:-1]),
    "collect": (lambda k: k.collect(), list),
    "count_distinct": (lambda k: k.count_distinct(), lambda found: len(set(found))),
    "reduce": (lambda k: k.reduce(max), max),
}
WINDOWS: dict[str, Windows | None] = {
    "running": None,
    "tumbling": tumbling(timedelta(seconds=1)),
    "hopping": hopping(timedelta(seconds=1), timedelta(milliseconds=500)),
    "session": session(timedelta(seconds=1)),
    "sliding": sliding(timedelta(seconds=1)),
    "count": count_window(len(BIG)),
}


def last(gather: Callable[[Any], Any], windows: Windows | None, numbers: list[Any]) -> Any:
    """Give the last result over all numbers, each in a batch of its own."""
    builder = StreamBuilder("numbers")
    source = builder.source("numbers", serdes.with_key(serdes.plain))
    keyed: Any = source.group_by_key()
    table = gather(keyed if windows is None else keyed.window(windows))
    table.to_stream().sink("out", serdes.plain)
    with TopologyTestDriver(builder.build(), partitions=1) as driver:
        sent = driver.input("numbers", serdes.plain)
        for number, value in enumerate(numbers):
            sent.send(value, key="k", time=EPOCH + ms(number))
        sent.send(1, key="other", time=EPOCH + ms(100_000))
        found = driver.output("out", serdes.plain).read_all()
        return [record.value for record in found if record.key == "k"][-1]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("gather", GATHERS)
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_any_size_stay_exact(kind: str, gather: str, windows: str) -> None:
    numbers = NUMBERS[kind]
    if windows == "count":
        numbers = (numbers * 2)[: len(BIG)]
    make, answer = GATHERS[gather]
    assert last(make, WINDOWS[windows], numbers) == answer(numbers)
