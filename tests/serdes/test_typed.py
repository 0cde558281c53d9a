"""Typed JSON: what a type says is checked, and read as columns too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pydantic
import pytest
from pyspark import cloudpickle

from headrace import serdes


@dataclass
class Plain:
    item: str
    price: int
    note: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Checked:
    price: int

    def __post_init__(self) -> None:
        if self.price < 0:
            message = "a price is not below zero"
            raise ValueError(message)


class Typed(TypedDict):
    item: str
    price: int


class Pair(NamedTuple):
    item: str
    price: int


class Record(msgspec.Struct):
    item: str
    price: int


class Model(pydantic.BaseModel):
    item: str
    price: int = pydantic.Field(ge=0)


VALUES: list[tuple[Any, Any]] = [
    (Plain, Plain("tea", 3, None, ["a"])),
    (Typed, Typed(item="tea", price=3)),
    (Pair, Pair("tea", 3)),
    (Record, Record("tea", 3)),
    (Model, Model(item="tea", price=3)),
]
by_type = pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda one: str(one)[:30])


@by_type
def test_values_come_back_also_in_another_process(kind: Any, value: Any) -> None:
    serde = cloudpickle.loads(cloudpickle.dumps(serdes.json(kind)))  # type: ignore[no-untyped-call]
    assert serde.deserialize(serde.serialize(value)) == value
    assert serde.deserialize_many(serde.serialize_many([value, value])) == [value, value]
    assert serde.hint is kind


@by_type
def test_columns_hold_what_the_values_hold(kind: Any, value: Any) -> None:
    serde = serdes.json(kind)
    batch = serde.read_columns(serde.serialize_many([value, value]))
    found = batch.to_pydict()
    assert (found["item"], found["price"]) == (["tea", "tea"], [3, 3])


@by_type
def test_wrong_type_is_refused_both_ways(kind: Any, value: Any) -> None:
    serde = serdes.json(kind)
    bad = b'["tea","x"]' if kind is Pair else b'{"item":"tea","price":"x"}'
    with pytest.raises(ValueError, match=r"price|Expected `int`"):
        serde.deserialize(bad)
    with pytest.raises(ValueError, match=r"price|Expected `int`"):
        serde.read_columns(pa.array([bad], pa.binary()))


def test_checks_of_the_users_own_run_for_columns_too() -> None:
    for kind in (Checked, Model):
        serde: Any = serdes.json(kind)
        with pytest.raises(ValueError, match=r"below zero|greater than or equal to 0"):
            serde.read_columns(pa.array([b'{"item":"tea","price":-1}'], pa.binary()))


def test_defaults_fill_columns() -> None:
    batch = serdes.json(Plain).read_columns(pa.array([b'{"item":"tea","price":1}'], pa.binary()))
    assert batch.to_pydict() == {"item": ["tea"], "price": [1], "note": [None], "tags": [[]]}


class Open(TypedDict):
    item: str
    note: NotRequired[str]


Odd = TypedDict("Odd", {"item": str, "a-b": int, "class": int})


def test_keys_of_dicts_that_are_no_fields_of_a_class_are_columns() -> None:
    batch = serdes.json(Open).read_columns(
        pa.array([b'{"item":"tea"}', b'{"item":"tea","note":"x"}'], pa.binary())
    )
    assert batch.to_pydict() == {"item": ["tea", "tea"], "note": [None, "x"]}
    odd = serdes.json(Odd).read_columns(pa.array([b'{"item":"a","a-b":1,"class":2}'], pa.binary()))
    assert odd.to_pydict() == {"item": ["a"], "a-b": [1], "class": [2]}


@pytest.mark.parametrize("kind", [Typed, Open, Odd])
def test_missing_key_is_refused_for_columns_too(kind: Any) -> None:
    with pytest.raises(ValueError, match="missing required field `item`"):
        serdes.json(kind).read_columns(pa.array([b'{"price":1,"a-b":1,"class":2}'], pa.binary()))


def test_ints_of_any_size_fit_a_column() -> None:
    batch = serdes.json(Plain).read_columns(
        pa.array([b'{"item":"a","price":%d}' % 2**70, b'{"item":"b","price":1}'], pa.binary())
    )
    assert list(map(int, batch.column(1).to_pylist())) == [2**70, 1]


def test_pydantic_serde_writes_its_model_only() -> None:
    with pytest.raises(TypeError, match="writes Model"):
        serdes.json(Model).serialize({"item": "tea"})  # type: ignore[arg-type]


def test_plain_json_stays_as_it_was() -> None:
    assert serdes.json.deserialize(serdes.json.serialize({"a": [1, None]})) == {"a": [1, None]}
    copied = cloudpickle.loads(cloudpickle.dumps(serdes.json))  # type: ignore[no-untyped-call]
    assert copied.serialize(3) == b"3"
