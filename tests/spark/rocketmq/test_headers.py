from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.errors import MessageRejectedError
from headrace.protocol.properties import decode_properties, encode_properties
from headrace.spark.rocketmq.writer import RESERVED, header_properties, headers_column

KIND = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))

texts = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1)
properties = st.dictionaries(texts | st.sampled_from(sorted(RESERVED)), texts, max_size=6)
raw = st.lists(st.sampled_from([b"a", b"bc", b"KEYS", b"\x01", b"\x02", b"\xff"])).map(b"".join)


def pairs(column: pa.ListArray) -> list[dict[str, str] | None]:
    return [
        None if row is None else {pair["key"]: pair["value"] for pair in row}
        for row in column.to_pylist()
    ]


def expected(one: bytes) -> dict[str, str] | None:
    decoded = decode_properties(one)
    return {name: value for name, value in decoded.items() if name not in RESERVED} or None


@given(st.lists(properties.map(encode_properties) | raw), st.integers(0, 3))
def test_headers_are_the_users_own_properties(messages: list[bytes], skipped: int) -> None:
    column = pa.array(messages, pa.binary())[skipped:]
    found = pairs(headers_column(column, KIND))
    # Names that are no UTF-8 may become equal; no client writes such.
    if not any(b"\xff" in one for one in messages):
        assert found == [expected(one) for one in messages[skipped:]]


def test_of_equal_names_the_last_counts() -> None:
    column = pa.array([b"a\x01old\x02b\x01x\x02a\x01new\x02"], pa.binary())
    assert headers_column(column, KIND).to_pylist() == [
        [{"key": "b", "value": "x"}, {"key": "a", "value": "new"}]
    ]


@given(st.lists(st.none() | st.dictionaries(texts.filter(lambda t: t not in RESERVED), texts)))
def test_written_headers_read_back(rows: list[dict[str, str] | None]) -> None:
    column = pa.array(
        [None if row is None else [{"key": k, "value": v} for k, v in row.items()] for row in rows],
        KIND,
    )
    written = header_properties(column)
    assert pairs(headers_column(written, KIND)) == [row or None for row in rows]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"key": "KEYS", "value": "x"}, "'KEYS', which RocketMQ or Headrace sets itself"),
        ({"key": "", "value": "x"}, "has the name ''"),
        ({"key": None, "value": "x"}, "has the name None"),
        ({"key": "a", "value": ""}, "has the value '' .name 'a'."),
        ({"key": "a", "value": None}, "has the value None"),
        ({"key": "a", "value": "b\x02"}, "has the value 'b"),
    ],
)
def test_headers_that_no_message_can_carry_are_refused(
    header: dict[str, str | None], says: str
) -> None:
    fine = {"key": "a", "value": "b"}
    with pytest.raises(MessageRejectedError, match=says):
        header_properties(pa.array([[fine], [fine, header]], KIND))
