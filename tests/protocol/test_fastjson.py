from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.errors import ProtocolError
from headrace.protocol.routes import parse

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner)
    ),
    max_leaves=12,
)


def loose(value: Any) -> str:
    """Write a value in a way that strict parsers refuse but fastjson's readers take."""
    if isinstance(value, dict):
        members = [f"{json.dumps(key)} : {loose(item)}" for key, item in value.items()]
        return "{" + ",".join(members) + (",}" if members else "}")
    if isinstance(value, list):
        return "[" + "".join(f"{loose(item)} , " for item in value) + "]"
    return json.dumps(value)


@given(VALUES)
def test_strict_json_is_read(value: Any) -> None:
    assert parse(json.dumps(value)) == value


@given(VALUES)
def test_loose_json_is_read_alike(value: Any) -> None:
    assert parse(loose([value, value])) == [value, value]


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_garbage_is_a_protocol_error(garbage: bytes | str) -> None:
    with contextlib.suppress(ProtocolError):
        parse(garbage)


@given(
    st.lists(
        st.sampled_from(["{", "}", "[", "]", ":", ",", '"', "'", "\\", "u12", "1", "a", "null"]),
        max_size=20,
    ).map("".join)
)
def test_crowded_marks_are_a_value_or_a_protocol_error(text: str) -> None:
    with contextlib.suppress(ProtocolError):
        parse(text)


@pytest.mark.parametrize("text", ["[" * 100_000, "{a:" * 1000, '{{"a":1}:' * 100])
def test_deep_nesting_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"127.0.0.1:10911",1:"b"}', {"0": "127.0.0.1:10911", "1": "b"}),
        (
            '{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":5}}}',
            {"offsetTable": {'{"brokerName":"b","queueId":0,"topic":"T"}': {"maxOffset": 5}}},
        ),
        ("{a:true,b:null,c:NaN}", {"a": True, "b": None, "c": None}),
        ("{'it\\'s':'\\x41\\u00e9\\v'}", {"it's": "Aé\v"}),
        ("{x:'\\ud83c\\udf0a',y:'\\ud83c'}", {"x": "\U0001f30a", "y": "\ufffd"}),
        ("{99999999999999999999999999:1}", {"99999999999999999999999999": 1}),
        ("[ ]", []),
        ("{[1,2]:3,true:4}", {"[1,2]": 3, "true": 4}),
    ],
)
def test_what_fastjson_writes_is_read(text: str, value: Any) -> None:
    assert parse(text) == value
    assert parse(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no value"),
        ("{a:1} x", "more text"),
        ('{"a" 1}', "no colon"),
        ("{a:1 b:2}", "neither comma nor brace"),
        ("[a]", "'a' is no value"),
        ("['a' 'b']", "neither comma nor bracket"),
        ("['a", "without end"),
        ("['\\u12']", "broken escape"),
    ],
)
def test_error_says_what_and_where(text: str, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        parse(text)
