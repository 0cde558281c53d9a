"""Protobuf: values come back, wrappers, oneofs, maps and times, refusals."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2 as pb, timestamp_pb2, wrappers_pb2
from hypothesis import given, strategies as st

from headrace.connect.converters import ProtobufConverter
from headrace.connect.numbers import single
from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    STRING,
    TIMESTAMP,
    array,
    mapping,
    struct,
)
from headrace.errors import ConnectorConfigError, DeserializationError, SerializationError

Kind = pb.FieldDescriptorProto

WRAPPED = ".google.protobuf.Int32Value"
MOMENT = ".google.protobuf.Timestamp"


def declared() -> pb.FileDescriptorSet:
    """What protoc would write of a file with the messages shop.Order and shop.Node."""
    file = pb.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    file.enum_type.add(name="Size").value.extend(
        [pb.EnumValueDescriptorProto(name=name, number=n) for n, name in enumerate(("S", "L"))]
    )
    line = file.message_type.add(name="Line")
    add(line, "item", Kind.TYPE_STRING)
    order = file.message_type.add(name="Order")
    add(order, "small", Kind.TYPE_SINT32)
    add(order, "large", Kind.TYPE_UINT64)
    add(order, "ratio", Kind.TYPE_FLOAT)
    add(order, "price", Kind.TYPE_DOUBLE)
    add(order, "paid", Kind.TYPE_BOOL)
    add(order, "name", Kind.TYPE_STRING)
    add(order, "data", Kind.TYPE_BYTES)
    add(order, "size", Kind.TYPE_ENUM, type_name=".shop.Size")
    add(order, "line", Kind.TYPE_MESSAGE, type_name=".shop.Line")
    add(order, "lines", Kind.TYPE_MESSAGE, type_name=".shop.Line", label=Kind.LABEL_REPEATED)
    add(order, "tags", Kind.TYPE_STRING, label=Kind.LABEL_REPEATED)
    add(order, "tries", Kind.TYPE_MESSAGE, type_name=WRAPPED)
    add(order, "at", Kind.TYPE_MESSAGE, type_name=MOMENT)
    order.oneof_decl.add(name="payment")
    add(order, "card", Kind.TYPE_STRING, oneof_index=0)
    add(order, "cash", Kind.TYPE_INT64, oneof_index=0)
    order.oneof_decl.add(name="_note")
    add(order, "note", Kind.TYPE_STRING, oneof_index=1, proto3_optional=True)
    add_map(order, "counts", Kind.TYPE_INT32)
    add_map(order, "moments", Kind.TYPE_MESSAGE, type_name=MOMENT)
    node = file.message_type.add(name="Node")
    add(node, "next", Kind.TYPE_MESSAGE, type_name=".shop.Node")
    found = pb.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
    found.file.append(file)
    return found


def add(message: pb.DescriptorProto, name: str, kind: Any, **more: Any) -> None:
    label = more.pop("label", Kind.LABEL_OPTIONAL)
    message.field.add(name=name, number=len(message.field) + 1, type=kind, label=label, **more)


def add_map(message: pb.DescriptorProto, name: str, kind: Any, **more: Any) -> None:
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    add(entry, "key", Kind.TYPE_STRING)
    add(entry, "value", kind, **more)
    place = f".shop.{message.name}.{entry.name}"
    add(message, name, Kind.TYPE_MESSAGE, type_name=place, label=Kind.LABEL_REPEATED)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("protobuf") / "shop.desc"
    file.write_bytes(declared().SerializeToString())
    return file


def by(file: Path, message: str) -> ProtobufConverter:
    return ProtobufConverter.of({"message": message, "descriptor.file": str(file)})


@pytest.fixture(scope="module")
def orders(file: Path) -> ProtobufConverter:
    return by(file, "shop.Order")


EMPTY: dict[str, Any] = {
    "small": 0,
    "large": 0,
    "ratio": 0.0,
    "price": 0.0,
    "paid": False,
    "name": "",
    "data": b"",
    "size": "S",
    "line": None,
    "lines": [],
    "tags": [],
    "tries": None,
    "at": None,
    "card": None,
    "cash": None,
    "note": None,
    "counts": {},
    "moments": {},
}


def test_the_schema_says_what_the_message_says(orders: ProtobufConverter) -> None:
    line = struct({"item": STRING}, name="shop.Line")
    expected = {
        "small": INT32,
        "large": INT64,
        "ratio": FLOAT32,
        "price": FLOAT64,
        "paid": BOOLEAN,
        "name": STRING,
        "data": BYTES,
        "size": STRING,
        "line": line.as_optional(),
        "lines": array(line),
        "tags": array(STRING),
        "tries": INT32.as_optional(),
        "at": TIMESTAMP.as_optional(),
        "card": STRING.as_optional(),
        "cash": INT64.as_optional(),
        "note": STRING.as_optional(),
        "counts": mapping(STRING, INT32),
        "moments": mapping(STRING, TIMESTAMP),
    }
    assert orders.from_bytes("t", b"") == (struct(expected, name="shop.Order"), EMPTY)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
MOMENTS = st.datetimes(timezones=st.just(UTC))
LINES = st.builds(lambda item: {"item": item}, TEXTS)
INT32S = st.integers(-(1 << 31), (1 << 31) - 1)
ORDERS = st.fixed_dictionaries(
    {},
    optional={
        "small": INT32S,
        "large": st.integers(0, (1 << 64) - 1),
        "ratio": st.floats(allow_nan=False).map(single),
        "price": st.floats(allow_nan=False),
        "paid": st.booleans(),
        "name": TEXTS,
        "data": st.binary(max_size=5),
        "size": st.sampled_from(["S", "L"]),
        "line": st.none() | LINES,
        "lines": st.lists(LINES, max_size=3),
        "tags": st.lists(TEXTS, max_size=3),
        "tries": st.none() | INT32S,
        "at": st.none() | MOMENTS,
        "note": st.none() | TEXTS,
        "counts": st.dictionaries(TEXTS, INT32S, max_size=3),
        "moments": st.dictionaries(TEXTS, MOMENTS, max_size=3),
    },
)
PAYMENTS = st.sampled_from([{}, {"card": ""}, {"card": "x"}, {"cash": 0}, {"cash": 5}])


@given(order=ORDERS, payment=PAYMENTS)
def test_values_come_back(
    orders: ProtobufConverter, order: dict[str, Any], payment: dict[str, Any]
) -> None:
    value = order | payment
    body = orders.to_bytes("t", None, value)
    assert orders.from_bytes("t", body).value == EMPTY | value
    assert orders.to_bytes("t", None, EMPTY | value) == body


def test_what_is_touched_is_there(orders: ProtobufConverter) -> None:
    value = {"line": {}, "tries": 0, "at": datetime(1970, 1, 1, tzinfo=UTC), "note": ""}
    found = orders.from_bytes("t", orders.to_bytes("t", None, value)).value
    assert found == EMPTY | value | {"line": {"item": ""}}


def test_no_value_has_no_body(orders: ProtobufConverter) -> None:
    assert orders.to_bytes("t", None, None) is None
    assert orders.from_bytes("t", None) == (None, None)


def test_a_message_that_contains_itself_gives_data_without_a_schema(file: Path) -> None:
    nodes = by(file, "shop.Node")
    value = {"next": {"next": {"next": None}}}
    assert nodes.from_bytes("t", nodes.to_bytes("t", None, value)) == (None, value)


def test_a_message_may_come_from_a_module() -> None:
    moments = ProtobufConverter.of({"message": "google.protobuf.timestamp_pb2:Timestamp"})
    moment = datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert moments.from_bytes("t", moments.to_bytes("t", None, moment)) == (TIMESTAMP, moment)


def test_bodies_are_those_of_the_message_itself() -> None:
    texts = ProtobufConverter.of({"message": "google.protobuf.wrappers_pb2:StringValue"})
    body = wrappers_pb2.StringValue(value="tea").SerializeToString()
    assert texts.to_bytes("t", None, "tea") == body
    assert texts.from_bytes("t", body) == (STRING, "tea")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"nmae": "x"}, "shop.Order has no field 'nmae'"),
        ({"name": 5}, "at name: "),
        ({"small": 1 << 40}, "at small: "),
        ({"small": True}, "at small: number or text is needed, not bool"),
        ({"paid": 1}, "at paid: bool is needed, not int"),
        ({"size": "XL"}, "at size: 'XL' is not one of S, L"),
        ({"card": "x", "cash": 5}, "card and cash are given, of which only one may be"),
        ({"line": "x"}, "at line: shop.Line is needed, not str"),
        ({"lines": [{}, {"item": 5}]}, "at lines[1].item: "),
        ({"tags": ["a", None]}, "at tags[1]: it is null"),
        ({"tags": "ab"}, "at tags: list is needed, not str"),
        ({"counts": {"a": "b"}}, "at counts['a']: "),
        ({"moments": {"a": datetime(2020, 1, 1)}}, "at moments['a']: a timestamp needs a zone"),  # noqa: DTZ001
        ({"at": 5}, "at at: a timestamp is needed, not int"),
        ([1], "shop.Order is needed, not list"),
    ],
)
def test_a_refused_value_says_where(orders: ProtobufConverter, value: Any, told: str) -> None:
    with pytest.raises(SerializationError) as caught:
        orders.to_bytes("orders", None, value)
    assert "the value of a record for topic 'orders'" in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize("body", [b"\xff", b"\x32\x05a", b"\x32\x01\xff"])
def test_a_body_that_is_no_such_message_is_refused(orders: ProtobufConverter, body: bytes) -> None:
    with pytest.raises(DeserializationError, match=r"topic 'orders': it is no shop\.Order"):
        orders.from_bytes("orders", body)


def test_wrong_settings_are_refused(file: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\xff")
    for config, told in [
        ({}, "The key message is missing"),
        ({"message": "shop.Order"}, "without a descriptor.file it is module:Class"),
        ({"message": "no_such_module:X"}, "No module named 'no_such_module'"),
        ({"message": "google.protobuf.wrappers_pb2:Nope"}, "no such message"),
        ({"message": "json:dumps"}, "dumps is no message"),
        ({"message": "shop.Nope", "descriptor.file": str(file)}, "shop.Nope"),
        ({"message": "a", "descriptor.file": str(tmp_path / "broken")}, "no file of descriptors"),
        ({"message": "a", "descriptor.file": "/no/such"}, "in /no/such"),
    ]:
        with pytest.raises(ConnectorConfigError) as caught:
            ProtobufConverter.of(config)
        assert told in str(caught.value)
