"""JSON, held against what Kafka Connect 4.1.1 itself makes of the same inputs."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from headrace.connect.converters import JsonConverter
from headrace.errors import DeserializationError, SerializationError
from tests.connect.converters.kafka_cases import (
    UnrepresentableError,
    body_of,
    cases,
    converted,
    name_of,
    schema_of,
    value_of,
)

# Without a schema Kafka keeps the low 64 bits of a whole number that is larger; ours is exact.
EXACT = {"9223372036854775808", "-9223372036854775809", "123456789012345678901234567890"}

# No JSON by RFC 8259, or not by UTF-8, which Kafka reads all the same, or reads the start of.
NO_JSON = {'{"a":1} x', "1 2", "01", '"\\ud800"', "1e400"}

# What Kafka makes another value of without a word: 0, false, null, an empty array, the low bits,
# infinity.  Here they are refused, so that such a record can be looked at.
CHANGED_BY_KAFKA = [
    ("boolean", '"true"'),
    ("boolean", "1"),
    ("int8", "300"),
    ("int8", "1.9"),
    ("int8", '"5"'),
    ("int16", "70000"),
    ("int32", "2147483648"),
    ("int32", "-1.5"),
    ("int32", "true"),
    ("int32", "1e30"),
    ("int32", "-1e30"),
    ("int64", "9223372036854775808"),
    ("int64", "1.99"),
    ("int64", "1e30"),
    ("int64", "123456789012345678901234567890"),
    ("double", '"1.5"'),
    ("double", "1e400"),
    ("string", "1"),
    ("string", '{"a":1}'),
    ("bytes", "1"),
]
REFUSED = {
    f'{{"schema":{{"type":"{kind}"}},"payload":{payload}}}' for kind, payload in CHANGED_BY_KAFKA
}
REFUSED |= {
    f'{{"schema":{{"type":"array","items":{{"type":"int32"}}}},"payload":{payload}}}'
    for payload in ('{"a":1}', '"x"')
}
REFUSED.add('{"schema":{"type":"int32","default":"x"},"payload":1}')
# Kafka writes these as text and reads the text as 0.
NOT_FINITE = {f'{{"schema":{{"type":"{kind}"}},"payload":"NaN"}}' for kind in ("float", "double")}


@pytest.mark.parametrize("case", cases("json_to"), ids=name_of)
def test_writes_what_kafka_writes(case: dict[str, Any]) -> None:
    converter = JsonConverter.of(case["config"])
    try:
        if "error" in case["expect"]:
            with pytest.raises(SerializationError):
                converted(case, converter)
            return
        body = converted(case, converter)
    except UnrepresentableError:
        return
    exactly = "decimal.format" in case["config"]
    assert tree(body, exactly) == tree(body_of(case["expect"]), exactly)


def tree(body: bytes | None, exactly: bool) -> Any:
    """JSON with the order of its fields, and numbers that know whether they have a point."""
    if body is None:
        return None
    number = str if exactly else Decimal
    return json.loads(
        body, object_pairs_hook=tuple, parse_float=lambda text: ("point", number(text))
    )


@pytest.mark.parametrize("case", cases("json_from"), ids=name_of)
def test_reads_what_kafka_reads(case: dict[str, Any]) -> None:
    converter = JsonConverter.of(case["config"])
    if "error" in case["expect"] or is_stricter(case):
        with pytest.raises(DeserializationError):
            converted(case, converter)
        return
    found = converted(case, converter)
    if case.get("text") in NOT_FINITE:
        assert found.value != found.value
        return
    schema = schema_of(case["expect"]["schema"])
    assert found.schema == schema
    expected = value_of(case["expect"]["value"], schema)
    if case.get("text") in EXACT:
        expected = int(case["text"])
    assert (found.value, type(found.value)) == (expected, type(expected))


def is_stricter(case: dict[str, Any]) -> bool:
    utf_16 = b"\0" in (body_of(case) or b"")
    return utf_16 or case.get("text") in NO_JSON | REFUSED
