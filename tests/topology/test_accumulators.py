from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from decimal import Decimal, Inexact

import pytest
from hypothesis import given, strategies as st

from headrace import Accumulator, serdes
from headrace.errors import SerializationError
from headrace.topology import AccumulatorSerde, Copies, add_numbers, mergeable


@dataclass
class Average(Accumulator[float, float]):
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    def merge(self, other: Average) -> None:
        self.total += other.total
        self.count += other.count

    def result(self) -> float:
        return self.total / self.count


@dataclass(slots=True)
class Distinct(Accumulator[str, int]):
    seen: set[str] = field(default_factory=set)

    def add(self, value: str) -> None:
        self.seen.add(value)

    def result(self) -> int:
        return len(self.seen)


def test_merge_is_found_where_it_is_given() -> None:
    assert mergeable(Average())
    assert not mergeable(Distinct())
    with pytest.raises(NotImplementedError):
        Distinct().merge(Distinct())


@given(st.lists(st.sampled_from("abc")))
def test_state_survives_its_serde_with_and_without_slots(values: list[str]) -> None:
    distinct, average = Distinct(), Average()
    for value in values:
        distinct.add(value)
        average.add(float(ord(value)))
    assert _round_trip(AccumulatorSerde(Distinct, serdes.plain), distinct) == distinct
    assert _round_trip(AccumulatorSerde(Average, serdes.plain), average) == average


def _round_trip(serde: AccumulatorSerde, value: Accumulator[str, int] | Average) -> object:
    return serde.deserialize(serde.serialize(value))


def test_copies_of_a_prototype_share_nothing() -> None:
    prototype = Distinct({"a"})
    make = Copies(prototype)
    first = make()
    first.add("b")
    assert (first.result(), make().result(), prototype.result()) == (2, 1, 1)


def test_state_that_is_not_plain_needs_a_serde() -> None:
    odd = Distinct({"a"})
    odd.seen = object()  # type: ignore[assignment]
    with pytest.raises(SerializationError, match="object is not plain data"):
        AccumulatorSerde(Distinct, serdes.plain).serialize(odd)


@given(
    st.lists(st.one_of(st.integers(), st.decimals(allow_nan=False, allow_infinity=False, places=9)))
)
def test_sums_of_decimals_and_ints_are_exact(numbers: list[int | Decimal]) -> None:
    total: int | Decimal = 0
    for number in numbers:
        total = add_numbers(total, number)
    scaled = sum(_scaled(Decimal(number)) for number in numbers)
    assert _scaled(Decimal(total)) == scaled


def _scaled(number: Decimal) -> int:
    numerator, denominator = number.as_integer_ratio()
    return numerator * 10**9 // denominator


def test_a_sum_that_cannot_be_exact_says_so() -> None:
    with pytest.raises(Inexact):
        add_numbers(Decimal("1e9000"), Decimal("1e-9000"))
    with pytest.raises(TypeError):
        add_numbers(Decimal(1), 1.5)


SINGLE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()
)
VALUES = st.one_of(SINGLE, st.tuples(SINGLE), st.lists(SINGLE), st.decimals(allow_nan=False))


class Bag(Accumulator[object, object]):
    def add(self, value: object) -> None: ...

    def result(self) -> object: ...


@given(st.dictionaries(st.text(max_size=3), VALUES))
def test_attributes_keep_their_values_and_types(attributes: dict[str, object]) -> None:
    bag = Bag()
    bag.restore(attributes)
    serde = pickle.loads(pickle.dumps(AccumulatorSerde(Bag, serdes.plain)))
    copy = serde.deserialize(AccumulatorSerde(Bag, serdes.plain).serialize(bag))
    kinds = {name: type(value) for name, value in copy.state().items()}
    assert (copy.state(), kinds) == (attributes, {n: type(v) for n, v in attributes.items()})


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**64, "\ud800", -0.0, True, 2**64 - 1])
def test_attributes_at_the_edges_of_the_short_form_come_back(value: object) -> None:
    bag = Bag()
    bag.restore({"held": value})
    serde = AccumulatorSerde(Bag, serdes.plain)
    found = serde.deserialize(serde.serialize(bag)).state()["held"]
    assert (repr(found), type(found)) == (repr(value), type(value))


def test_state_in_the_long_form_is_read() -> None:
    serde = AccumulatorSerde(Bag, serdes.plain)
    assert serde.deserialize(serdes.plain.serialize({"a": 1, "b": 2.5})).state() == {
        "a": 1,
        "b": 2.5,
    }
