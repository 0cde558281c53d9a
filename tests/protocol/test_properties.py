from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.errors import MessageRejectedError
from headrace.protocol.properties import MAX_PROPERTIES, decode_properties, encode_properties
from tests.protocol.reference import properties, raw_properties


@given(properties())
def test_decode_reverses_encode(values: dict[str, str]) -> None:
    encoded = encode_properties(values)
    assert encoded == raw_properties(values)
    assert decode_properties(encoded) == values
    assert decode_properties(memoryview(encoded)[:-1]) == values


@given(st.binary(max_size=60))
def test_any_bytes_can_be_read(encoded: bytes) -> None:
    found = decode_properties(encoded)
    assert all(name and value for name, value in found.items())


def test_last_of_equal_names_counts_unless_it_is_empty() -> None:
    assert decode_properties(b"K\x01a\x02K\x01b\x02K\x01\x02") == {"K": "b"}


def test_value_may_hold_the_first_separator_when_read() -> None:
    assert decode_properties(b"K\x01a\x01b\x02\x01c\x02junk\x02") == {"K": "a\x01b"}


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert decode_properties(b"K\x01\xff\x02") == {"K": "\ufffd"}


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("", "v", "neither may be empty"),
        ("KEYS", "", "'KEYS' has the value ''"),
        ("KEYS", "a\x01b", "'KEYS' holds U\\+0001"),
        ("a\x02", "b", "U\\+0002"),
        ("K", "\ud800", "not valid text"),
        ("K", "x" * MAX_PROPERTIES, "32770 bytes, 32767 are possible"),
    ],
)
def test_property_that_cannot_be_stored_is_refused(name: str, value: str, reason: str) -> None:
    with pytest.raises(MessageRejectedError, match=reason):
        encode_properties({name: value, "other": "fine"} if len(value) < 99 else {name: value})
