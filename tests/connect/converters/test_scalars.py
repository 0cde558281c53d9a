"""Bytes, text, numbers and truth values, held against Kafka Connect 4.1.1; columns against values."""

from __future__ import annotations

import re
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.connect.converters import (
    BooleanConverter,
    BytesConverter,
    Converter,
    DoubleConverter,
    FloatConverter,
    IntegerConverter,
    LongConverter,
    ShortConverter,
    StringConverter,
)
from headrace.connect.numbers import single
from headrace.connect.schema import STRING, Schema, struct as struct_schema
from headrace.errors import ConnectorConfigError, DeserializationError, SerializationError
from tests.connect.converters.kafka_cases import (
    UnrepresentableError,
    as_python,
    body_of,
    cases,
    converted,
    name_of,
    schema_of,
    value_of,
)

CONVERTERS: dict[str, type[Converter]] = {
    "boolean": BooleanConverter,
    "bytes": BytesConverter,
    "double": DoubleConverter,
    "float": FloatConverter,
    "integer": IntegerConverter,
    "long": LongConverter,
    "short": ShortConverter,
    "string": StringConverter,
}

# Java's own text of a date has no milliseconds and hangs on the machine's zone: ours is ISO 8601.
OURS = {"date": {1600000000123: b"2020-09-13T12:26:40.123Z", 86400000: b"1970-01-02"}}


def is_javas_alone(case: dict[str, Any]) -> bool:
    """Whether Java tells classes of numbers apart that are one in Python."""
    value = case.get("value") or {}
    widened = case["schema"] is None and ("int32" in value or "int64" in value)
    return widened and case["converter"] in {"short", "integer"} and "error" in case["expect"]


@pytest.mark.parametrize("case", cases("scalars"), ids=name_of)
def test_does_what_kafka_does(case: dict[str, Any]) -> None:
    kind = CONVERTERS[case["converter"]]
    if "error" in case["expect"]:
        if case["do"] == "to" and is_javas_alone(case):
            return
        with pytest.raises((SerializationError, DeserializationError, ConnectorConfigError)):
            converted(case, kind.of(case["config"]))
        return
    try:
        found = converted(case, kind.of(case["config"]))
    except UnrepresentableError:
        return
    if case["do"] == "to":
        assert found == expected_body(case)
        return
    schema = schema_of(case["expect"]["schema"])
    assert found.schema == schema
    assert marked_once(found.value) == marked_once(value_of(case["expect"]["value"], schema))


def marked_once(value: Any) -> str:
    """A value's text; Java marks a broken sequence of bytes once, Python each byte of it."""
    return re.sub("\ufffd+", "\ufffd", repr(value))


def expected_body(case: dict[str, Any]) -> bytes | None:
    if case["converter"] == "string" and "date" in (case["value"] or {}):
        return OURS["date"][case["value"]["date"]]
    if case["converter"] == "string" and case["value"] == {"float32": "30000000000.0"}:
        # Java 17 writes a digit too many, which Java 19 no longer does.
        return b"30000000000.0"
    body = body_of(case["expect"])
    # Floating-point numbers become text as Python writes it.
    return as_python(body) if case["converter"] == "string" else body


WHOLE: list[tuple[type[Converter], int]] = [
    (ShortConverter, 15),
    (IntegerConverter, 31),
    (LongConverter, 63),
]


@pytest.mark.parametrize(("kind", "bits"), WHOLE)
@given(data=st.data())
def test_whole_numbers_come_back(kind: type[Converter], bits: int, data: st.DataObject) -> None:
    value = data.draw(st.integers(-(1 << bits), (1 << bits) - 1))
    converter = kind.of({})
    assert converter.from_bytes("t", converter.to_bytes("t", None, value)).value == value


@given(st.floats(allow_nan=False))
def test_floats_come_back(value: float) -> None:
    double, short = DoubleConverter.of({}), FloatConverter.of({})
    assert double.from_bytes("t", double.to_bytes("t", None, value)).value == value
    rounded = single(value)
    assert short.from_bytes("t", short.to_bytes("t", None, rounded)).value == rounded


@given(st.text(st.characters(codec="utf-8")), st.sampled_from(["UTF-8", "UTF-16", "UTF-32"]))
def test_text_comes_back(text: str, encoding: str) -> None:
    converter = StringConverter.of({"converter.encoding": encoding})
    assert converter.from_bytes("t", converter.to_bytes("t", None, text)).value == text


COLUMNS: list[tuple[type[Converter], pa.Array]] = [
    (BytesConverter, pa.array([b"a", None, b"", b"\xff"])),
    (StringConverter, pa.array(["a", None, "", "é☃"])),
    (ShortConverter, pa.array([1, None, -32768, 5], pa.int16())),
    (IntegerConverter, pa.array([1, None, -(1 << 31)], pa.int32())),
    (LongConverter, pa.array([1, None, -(1 << 63)], pa.int64())),
    (FloatConverter, pa.array([1.5, None, float("inf")], pa.float32())),
    (DoubleConverter, pa.array([0.1, None, float("-inf")], pa.float64())),
    (LongConverter, pa.array([], pa.int64())),
]


@pytest.mark.parametrize(("kind", "column"), COLUMNS)
@pytest.mark.parametrize("start", [0, 1])
def test_columns_say_what_values_say(kind: type[Converter], column: pa.Array, start: int) -> None:
    converter = kind.of({})
    part = column[start:]
    bodies = converter.to_column("t", None, part)
    assert bodies.type == pa.binary()
    values = part.to_pylist()
    assert bodies.to_pylist() == [converter.to_bytes("t", None, one) for one in values]
    found = converter.from_column("t", bodies)
    assert found is not None
    assert found.values.equals(part)
    assert found.schema == converter.from_bytes("t", None).schema


def test_columns_of_other_types_are_written_value_by_value() -> None:
    column = pa.array([1, 2, None])
    assert StringConverter.of({}).to_column("t", None, column).to_pylist() == [b"1", b"2", None]


@pytest.mark.parametrize(
    ("kind", "bodies"),
    [
        (LongConverter, [b"\0" * 8, b"\0"]),
        (StringConverter, [b"a", b"\xff"]),
        (BooleanConverter, [b"\0"]),
    ],
)
def test_columns_with_a_body_that_is_broken_are_left_to_the_single_bodies(
    kind: type[Converter], bodies: list[bytes]
) -> None:
    assert kind.of({}).from_column("t", pa.array(bodies, pa.binary())) is None


def test_a_refusal_says_topic_part_reason_and_value() -> None:
    with pytest.raises(SerializationError) as caught:
        ShortConverter.of({}, is_key=True).to_bytes("orders", None, 40_000)
    assert str(caught.value) == (
        "ShortConverter cannot write the key of a record for topic 'orders': 40000 is beyond the"
        " range of int16; the key begins 40000\n  → use a converter of wider numbers"
    )


def test_a_body_that_cannot_be_read_is_shown() -> None:
    with pytest.raises(DeserializationError) as caught:
        IntegerConverter.of({}).from_bytes("orders", b"abc")
    assert "value of a record of topic 'orders': 4 bytes are needed and there are 3" in str(
        caught.value
    )
    assert "the body begins b'abc'" in str(caught.value)


def test_a_header_that_cannot_be_read_is_named() -> None:
    with pytest.raises(DeserializationError, match="the header 'n' of a record of topic 'orders'"):
        IntegerConverter.of({}).header_from_bytes("orders", "n", b"abc")
    with pytest.raises(SerializationError, match="the header 'n' of a record for topic 'orders'"):
        IntegerConverter.of({}).header_to_bytes("orders", "n", None, "abc")


def test_bytes_are_no_text() -> None:
    with pytest.raises(SerializationError, match="these are bytes"):
        StringConverter.of({}).to_bytes("t", None, {"a": b"x"})


def test_misspelt_encodings_are_refused() -> None:
    with pytest.raises(ConnectorConfigError, match=r"converter\.encoding is 'utf-99'"):
        StringConverter.of({"converter.encoding": "utf-99"})


def test_converters_of_others_get_the_same_messages() -> None:
    class Strict(Converter):
        def write(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
            return struct.pack(">B", value)

        def read(self, topic: str, body: bytes | None) -> Any:
            raise ValueError("no such body")

    with pytest.raises(DeserializationError, match=r"Strict cannot read .* no such body"):
        Strict.of({}).from_bytes("t", b"")
    assert Strict.of({}).to_column("t", None, pa.array([1, 2])).to_pylist() == [b"\1", b"\2"]


def test_structs_are_written_as_java_shows_them() -> None:
    schema = struct_schema({"a": STRING, "b": STRING.as_optional()})
    text = StringConverter.of({}).to_bytes("t", schema, {"a": "x", "b": None})
    assert text == b"Struct{a=x}"
