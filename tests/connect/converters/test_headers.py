"""Headers as text, held against Kafka Connect 4.1.1."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.connect.converters import Converted, SimpleHeaderConverter
from headrace.connect.schema import (
    BOOLEAN,
    BYTES,
    DATE,
    STRING,
    TIME,
    TIMESTAMP,
    array,
    mapping,
)
from headrace.errors import SerializationError
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

HEADERS = SimpleHeaderConverter.of({})

# Kafka reads the start and forgets the rest, or finds a day that there is not; ours is text.
STAYS_TEXT = {
    *("12:30", "1:2:3", "1:2:3:4:5", "1]", "[1]x", "{}x", "[1][2]"),
    *("2019-02-30", "25:34:54.346Z"),
}
# Kafka leaves the backslashes in that its own writer has put there.
UNESCAPED = {'["a\\"b"]': ['a"b'], '["a\\\\b"]': ["a\\b"]}
# Kafka fails (null), or writes U+FFFD for what is no text.
OURS = {"null": Converted(None, None), "//4=": Converted(BYTES, b"\xff\xfe")}
# Java's calendar of before 1582 is another one.
OLD = {"0001-01-01": Converted(DATE, date(1, 1, 1))}
# Midnight, and everything before 1970-01-02, is written by Kafka as if it were of another type.
MOMENTS = {
    "2019-04-14": b"2019-04-14T00:00:00.000Z",
    "00:00:00.000Z": b"1970-01-01",
    "23:59:59.995Z": b"1969-12-31T23:59:59.995Z",
}


@pytest.mark.parametrize("case", cases("headers"), ids=name_of)
def test_does_what_kafka_does(case: dict[str, Any]) -> None:
    try:
        found = converted(case, HEADERS)
    except UnrepresentableError:
        return
    if case["do"] == "to":
        # Floating-point numbers become text as Python writes it.
        expected = as_python(body_of(case["expect"]))
        assert found in {expected, MOMENTS.get((expected or b"").decode())}
        return
    assert repr(found) == repr(expected_value(case))


def expected_value(case: dict[str, Any]) -> Converted:
    given = case.get("text") or case.get("base64")
    if given in OURS | OLD:
        return (OURS | OLD)[given]
    if given in STAYS_TEXT:
        return Converted(STRING, given)
    if given in UNESCAPED:
        return Converted(array(STRING), UNESCAPED[given])
    told = case["expect"]["schema"]
    # Kafka's schema of a list whose items differ has none for its items: ours has none at all.
    schema = None if is_open(told) else schema_of(told)
    try:
        return Converted(schema, value_of(case["expect"]["value"], schema))
    except UnrepresentableError:
        # A list in a list has another type than its schema says.
        return Converted(schema, value_of(case["expect"]["value"], None))


def is_open(told: dict[str, Any] | None) -> bool:
    if told is None or told["type"] not in {"array", "map"}:
        return False
    inner = [told.get("items", told.get("values")), told.get("keys", 0)]
    return None in inner or any(isinstance(one, dict) and is_open(one) for one in inner)


KEPT = [
    (BOOLEAN, True),
    (DATE, date(2024, 2, 29)),
    (TIME, time(1, 2, 3, 4000)),
    (TIMESTAMP, datetime(2024, 2, 29, tzinfo=UTC)),
    (TIMESTAMP, datetime(1969, 2, 28, 1, 2, 3, 4000, tzinfo=UTC)),
    (array(STRING), ['a"b\\', "", " ", "[1]", "null"]),
    (array(array(BOOLEAN)), [[True], [False]]),
    (mapping(STRING, BOOLEAN), {'k"': True}),
    (array(DATE), [date(2024, 2, 29)]),
    (STRING, "plain text"),
    (STRING, "a:b,c"),
]


@pytest.mark.parametrize("pair", KEPT)
def test_values_come_back(pair: tuple[Any, Any]) -> None:
    schema, value = pair
    body = HEADERS.header_to_bytes("t", "h", schema, value)
    assert HEADERS.header_from_bytes("t", "h", body) == pair


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=1))
def test_lists_of_text_come_back_unless_they_look_like_times(texts: list[str]) -> None:
    body = HEADERS.header_to_bytes("t", "h", array(STRING), texts)
    assert HEADERS.header_from_bytes("t", "h", body).value == texts


@given(st.text(st.characters(codec="utf-8")))
def test_no_text_is_too_odd_to_read(text: str) -> None:
    HEADERS.header_from_bytes("t", "h", text.encode())


@given(st.text('[]{}:,"\\ 1a.e-'))
def test_no_text_of_delimiters_is_too_odd_to_read(text: str) -> None:
    found = HEADERS.header_from_bytes("t", "h", text.encode())
    if found.schema == STRING:
        assert found.value == text


@pytest.mark.parametrize(
    ("text", "value"), [("1e999999999", Decimal("1e999999999")), ("1e-999999999", 0.0)]
)
def test_numbers_with_huge_exponents_cost_nothing(text: str, value: Any) -> None:
    assert HEADERS.header_from_bytes("t", "h", text.encode()).value == value


def test_deep_nesting_is_text() -> None:
    text = "[" * 100_000
    assert HEADERS.header_from_bytes("t", "h", text.encode()) == (STRING, text)


def test_values_without_a_text_are_refused() -> None:
    with pytest.raises(SerializationError, match=r"the header 'h' .* no text for set"):
        HEADERS.header_to_bytes("t", "h", None, {1})
