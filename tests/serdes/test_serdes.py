from __future__ import annotations

import math
import pickle
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark import cloudpickle

from headrace import serdes
from headrace.errors import DeserializationError, SerializationError

VALUES: dict[serdes.Serde[Any], st.SearchStrategy[Any]] = {
    serdes.bytes: st.binary(),
    serdes.string: st.text(),
    serdes.int: st.integers(),
    serdes.float: st.floats(allow_nan=False),
    serdes.json: st.one_of(st.integers(), st.text(), st.lists(st.booleans())),
    serdes.plain: st.one_of(st.integers(), st.text(), st.decimals(allow_nan=False), st.none()),
    serdes.key: st.one_of(st.text(), st.tuples(st.integers(), st.text())),
    serdes.pickle: st.one_of(st.integers(), st.complex_numbers(allow_nan=False)),
    serdes.state: st.one_of(st.text(), st.integers()),
    serdes.StateSerde(pickles=True): st.one_of(st.text(), st.complex_numbers(allow_nan=False)),
}


@dataclass(frozen=True)
class Order:
    item: str
    price: int


@pytest.mark.parametrize("serde", list(VALUES), ids=repr)
@given(data=st.data())
def test_values_come_back_one_by_one_and_many_at_once(
    serde: serdes.Serde[Any], data: st.DataObject
) -> None:
    values = data.draw(st.lists(VALUES[serde], max_size=6))
    column = serde.serialize_many(values)
    assert column.type == pa.binary()
    assert column.to_pylist() == [serde.serialize(value) for value in values]
    assert serde.deserialize_many(column) == values
    assert [serde.deserialize(one) for one in column.to_pylist()] == values


@pytest.mark.parametrize("serde", list(VALUES), ids=repr)
def test_a_slice_of_a_column_is_read_as_a_slice(serde: serdes.Serde[Any]) -> None:
    examples: dict[str, list[Any]] = {"bytes": [b"a", b"b", b"c"], "string": ["a", "b", "c"]}
    values = examples.get(repr(serde), [1, 2, 3])
    column = serde.serialize_many(values)
    assert serde.deserialize_many(column.slice(1, 1)) == values[1:2]
    assert serde.deserialize_many(column.slice(3)) == []


@pytest.mark.parametrize("serde", [*VALUES, serdes.nothing, serdes.json_of(Order)], ids=repr)
def test_serdes_travel_to_other_processes(serde: serdes.Serde[Any]) -> None:
    assert repr(pickle.loads(pickle.dumps(serde))) == repr(serde)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, bytes(8)),
        (-2, b"\xfe" + b"\xff" * 7),
        (2**63 - 1, b"\xff" * 7 + b"\x7f"),
        (2**63, bytes(7) + b"\x80\x00"),
        (-(2**63), bytes(7) + b"\x80"),
        (-(2**63) - 1, b"\xff" * 7 + b"\x7f\xff"),
    ],
)
def test_ints_take_eight_bytes_or_more_and_never_overflow(value: int, data: bytes) -> None:
    assert serdes.int.serialize(value) == data
    assert serdes.int.deserialize(data) == value
    assert serdes.int.serialize_many([value, 1]).to_pylist() == [data, serdes.int.serialize(1)]
    assert serdes.int.deserialize_many(pa.array([data, bytes(8)])) == [value, 0]


def test_int_columns_are_packed_without_objects() -> None:
    numbers = np.array([1, -1, 2**62])
    column = serdes.pack_int64(numbers)
    unpacked = serdes.unpack_int64(column.slice(1))
    assert unpacked is not None
    assert unpacked.tolist() == [-1, 2**62]
    assert serdes.unpack_int64(pa.array([bytes(8), bytes(9)])) is None
    assert serdes.unpack_int64(pa.array([bytes(7), bytes(9)])) is None
    assert serdes.unpack_int64(pa.array([bytes(8), None])) is None


@pytest.mark.parametrize(
    ("serde", "value"),
    [
        (serdes.string, b"a"),
        (serdes.bytes, "a"),
        (serdes.int, 1.5),
        (serdes.int, "1"),
        (serdes.float, "1"),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(
    serde: serdes.Serde[Any], value: object
) -> None:
    message = rf"serdes\.{serde!r} writes .*, not {type(value).__name__}"
    with pytest.raises(TypeError, match=message):
        serde.serialize(value)
    with pytest.raises(TypeError, match=message):
        serde.serialize_many([value])


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        serdes.string.deserialize(b"\xff")
    with pytest.raises(ValueError, match=r"(?i)utf-?8"):
        serdes.string.deserialize_many(pa.array([b"a", b"\xff"]))


def test_json_keeps_integers_of_any_size() -> None:
    huge = 2**200 + 1
    assert serdes.json.deserialize(serdes.json.serialize(huge)) == huge
    assert serdes.json.deserialize_many(serdes.json.serialize_many([huge, 1])) == [huge, 1]
    assert serdes.json.serialize(True) == serdes.json.serialize_many([True])[0].as_py() == b"true"
    assert serdes.json.serialize(math.nan) == b"null"


def test_typed_json_checks_what_it_reads_and_writes() -> None:
    serde = serdes.json_of(Order)
    assert serde.deserialize(serde.serialize(Order("tea", 3))) == Order("tea", 3)
    with pytest.raises(ValueError, match="price"):
        serde.deserialize(b'{"item": "tea", "price": "much"}')
    with pytest.raises(TypeError, match=r"json_of\(Order\) writes Order, not NoneType: None"):
        serdes.json_of(Order).serialize(None)  # type: ignore[arg-type]


@dataclass
class Basket:
    orders: list[Order]
    best: Order | None = None


class Coin(msgspec.Struct):
    value: int


WORKER = """
import pickle, sys
serde = pickle.load(sys.stdin.buffer)
print(serde.deserialize(sys.argv[1].encode()))
"""


def read_in_a_worker(serde: serdes.Serde[Any], body: bytes) -> subprocess.CompletedProcess[str]:
    """Read in a process that cannot import this module, so classes travel by value."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        payload = cloudpickle.dumps(serde)  # type: ignore[no-untyped-call]
    finally:
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    command = [sys.executable, "-c", WORKER, body.decode()]
    done = subprocess.run(command, input=payload, capture_output=True, check=False)
    return subprocess.CompletedProcess(
        command, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def test_typed_json_of_the_programs_own_classes_travels_to_workers() -> None:
    serde = serdes.json_of(Basket)
    body = serde.serialize(Basket([Order("tea", 3)]))
    assert serde.deserialize(body) == Basket([Order("tea", 3)])
    assert read_in_a_worker(serde, body).stdout == f"{Basket([Order('tea', 3)])}\n"


def test_struct_that_would_lose_its_fields_on_the_way_is_refused() -> None:
    failed = read_in_a_worker(serdes.json_of(Coin), b'{"value": 3}')
    assert failed.returncode != 0
    assert "Coin is a msgspec Struct of the program itself" in failed.stderr


def test_plain_data_keeps_its_types() -> None:
    value = {"sum": Decimal("1.10"), ("a", 1): [b"x", {1.5, None}]}
    assert serdes.plain.deserialize(serdes.plain.serialize(value)) == value
    assert str(serdes.plain.deserialize(serdes.plain.serialize(Decimal("1.10")))) == "1.10"
    with pytest.raises(SerializationError, match=r"Order is not plain data"):
        serdes.plain.serialize(Order("tea", 3))
    with pytest.raises(DeserializationError):
        serdes.plain.deserialize(b"\xff")


def test_nothing_writes_no_bytes() -> None:
    column = serdes.nothing.serialize_many([Order("tea", 3), object()])
    assert column.to_pylist() == [b"", b""]
    assert serdes.nothing.deserialize_many(column) == [None, None]
    assert serdes.nothing.serialize_many([]).to_pylist() == []
