from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    Optional,
    Protocol,
    TypedDict,
    TypeVar,
)

import msgspec
import pydantic
import pytest

from headrace import serdes
from headrace.serdes.inference import (
    item_hint,
    pair_hints,
    result_hint,
    serde_for,
    topic_serde_for,
)


@dataclass
class Order:
    item: str


class Colour(Enum):
    RED = 1


class Point(NamedTuple):
    x: int


class Row(TypedDict):
    name: str


class OrderRow(TypedDict):
    order: Order


class Coin(msgspec.Struct):
    value: int | None


class Person(pydantic.BaseModel):
    name: str


@dataclass
class Basket:
    orders: list[Order]
    rest: Basket | None


@dataclass
class Shelf:
    numbers: range


@dataclass
class Lost:
    order: Missing  # type: ignore[name-defined]  # noqa: F821 - cannot be resolved


class Sized(Protocol):
    pass


T = TypeVar("T")
UserId = NewType("UserId", int)
Named = NewType("Named", Order)


@dataclass
class Page(Generic[T]):
    items: list[T]


@pytest.mark.parametrize(
    ("hint", "serde"),
    [
        (str, serdes.string),
        (int, serdes.int),
        (float, serdes.float),
        (bytes, serdes.bytes),
        (bool, serdes.plain),
        (date, serdes.plain),
        (Any, serdes.plain),
        (object, serdes.plain),
        (None, serdes.plain),
        (T, serdes.plain),
        (UserId, serdes.plain),
        (Row, serdes.plain),
        (Sized, serdes.plain),
        (str | None, serdes.plain),
        (Optional[int], serdes.plain),  # noqa: UP045 - the old spelling is what is tested
        (Literal["a", 1], serdes.plain),
        (Annotated[int, "metres"], serdes.plain),
        (list[str], serdes.plain),
        (dict[str, tuple[int, ...]], serdes.plain),
        (Mapping[str, int], serdes.plain),
    ],
)
def test_plain_types_have_a_serde(hint: Any, serde: serdes.Serde[Any]) -> None:
    assert repr(serde_for(hint)) == repr(serde)


@pytest.mark.parametrize(
    ("hint", "serde"),
    [
        (Order, "json_of(Order)"),
        (Basket, "json_of(Basket)"),
        (Page[Order], "json_of(Page)"),
        (Colour, "json_of(Colour)"),
        (Point, "json_of(Point)"),
        (OrderRow, "json_of(OrderRow)"),
        (Coin, "json_of(Coin)"),
        (Person, "json_of(Person)"),
        (Named, "json_of(Order)"),
        (Annotated[Order, "paid"], "json_of(Annotated)"),
        (list[Order], "json_of(list)"),
        (dict[str, Order], "json_of(dict)"),
        (Order | None, "json_of(Order) or none"),
        (Optional[Person], "json_of(Person) or none"),  # noqa: UP045 - the old spelling
        (Order | Basket, "None"),
        (list[Person], "None"),
        (Shelf, "None"),
        (Lost, "None"),
        (Page[range], "None"),
        (range, "None"),
    ],
)
def test_types_with_fields_are_written_as_json_if_all_their_fields_can_be(
    hint: Any, serde: str
) -> None:
    assert repr(serde_for(hint)) == serde


@pytest.mark.parametrize(
    ("hint", "serde"),
    [
        (str, "string"),
        (str | None, "string"),
        (bytes, "bytes"),
        (int, "json"),
        (dict[str, int], "json"),
        (Row, "json_of(Row)"),
        (Order | None, "json_of(Order)"),
        (Any, "None"),
        (object, "None"),
        (T, "None"),
        (Sized, "None"),
        (range, "None"),
    ],
)
def test_topics_get_text_as_it_is_and_all_else_as_json(hint: Any, serde: str) -> None:
    assert repr(topic_serde_for(hint)) == serde


class Caller:
    def __call__(self, value: str) -> float:
        return float(value)

    def method(self, value: str) -> bytes:
        return value.encode()


def annotated(value: str) -> int:
    return len(value)


def broken(value: str) -> Missing:  # type: ignore[name-defined]  # noqa: F821 - cannot be resolved
    return value


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (annotated, int),
        (functools.partial(annotated), int),
        (Caller(), float),
        (Caller().method, bytes),
        (Order, Order),
        (int, int),
        (len, Any),
        (str.lower, Any),
        (lambda value: value, Any),
        (broken, Any),
    ],
)
def test_annotations_tell_the_result(function: Any, hint: Any) -> None:
    assert result_hint(function) is hint


def test_local_names_are_resolved_where_they_are_given() -> None:
    class Local:
        pass

    def make(value: str) -> Local:
        raise NotImplementedError

    assert result_hint(make) is Any
    assert result_hint(make, {"Local": Local}) is Local


@pytest.mark.parametrize(
    ("hint", "item"),
    [
        (list[int], int),
        (Iterator[str], str),
        (Iterable[tuple[str, int]], tuple[str, int]),
        (tuple[int, ...], int),
        (tuple[int, str], int | str),
        (dict[str, int], str),
        (str, str),
        (bytes, int),
        (list[int] | None, int),
        (list, Any),
        (Any, Any),
    ],
)
def test_items_of_iterables(hint: Any, item: Any) -> None:
    assert item_hint(hint) == item


@pytest.mark.parametrize(
    ("hint", "pair"),
    [
        (tuple[str, int], (str, int)),
        (tuple[str, ...], (Any, Any)),
        (tuple[str], (Any, Any)),
        (list[str], (Any, Any)),
    ],
)
def test_pairs(hint: Any, pair: tuple[Any, Any]) -> None:
    assert pair_hints(hint) == pair
