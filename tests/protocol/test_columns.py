from __future__ import annotations

import contextlib
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.errors import ProtocolError
from headrace.protocol import columns as columns_module
from headrace.protocol.columns import (
    MessageColumns,
    decode_columns,
    property_column,
    rows_with_others,
)
from headrace.protocol.layout import record_starts
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.properties import decode_properties
from headrace.protocol.records import encode_records
from tests.protocol.reference import (
    TRAP,
    as_read,
    block_of,
    damaged,
    properties,
    raw_properties,
    stored_messages,
)


def rows(columns: MessageColumns) -> list[tuple[Any, ...]]:
    numbers = zip(
        columns.queue_offset.tolist(),
        columns.position.tolist(),
        columns.born.tolist(),
        columns.stored.tolist(),
        columns.queue_id.tolist(),
        columns.sys_flag.tolist(),
        strict=True,
    )
    found = [decode_properties(raw) for raw in columns.properties.to_pylist()]
    return list(zip(numbers, columns.body.to_pylist(), found, strict=True))


def expected_rows(messages: list[StoredMessage]) -> list[tuple[Any, ...]]:
    return [
        (
            (m.queue_offset, m.position, m.born, m.stored, m.queue_id, m.sys_flag),
            m.body,
            m.properties,
        )
        for m in messages
    ]


@given(st.lists(stored_messages(), max_size=6))
def test_columns_equal_messages_one_by_one(messages: list[StoredMessage]) -> None:
    columns = decode_columns(block_of(messages))
    assert len(columns) == len(messages)
    assert rows(columns) == expected_rows(list(map(as_read, messages)))
    for name in ("KEYS", "TAGS", "absent", ""):
        wanted = [m.properties.get(name) for m in messages]
        found = columns.property(name).to_pylist()
        assert [value if value is None else value.decode() for value in found] == wanted


@given(st.lists(stored_messages(), min_size=1, max_size=4).map(block_of), st.data())
def test_damaged_block_reads_as_one_by_one_or_not_at_all(block: bytes, data: st.DataObject) -> None:
    block = data.draw(damaged(block))
    try:
        wanted = expected_rows(decode_messages(block))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            decode_columns(block)
        return
    assert rows(decode_columns(block)) == wanted


@given(st.binary(max_size=300))
def test_garbage_is_a_protocol_error(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(decode_columns(garbage)) == 0


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_read(make: Any) -> None:
    message = StoredMessage(topic="t", body=b"to be")
    assert decode_columns(make(block_of([message]))).body.to_pylist() == [b"to be"]


def test_starts_are_found_in_bodies_full_of_magic_numbers() -> None:
    for body in (TRAP, b"\xda" * 500, b"plain"):
        messages = [StoredMessage(topic="t", body=body + bytes(n)) for n in range(5)]
        sizes = [len(block_of([message])) for message in messages]
        assert record_starts(block_of(messages)).tolist() == [0, *np.cumsum(sizes[:-1])]


def test_wrong_record_is_named() -> None:
    one = block_of([StoredMessage(topic="t", body=b"abc")])
    broken = bytearray(one * 3)
    broken[len(one) + 4] ^= 1
    with pytest.raises(ProtocolError, match=f"record 1, at byte {len(one)} .* magic"):
        decode_columns(broken)
    broken = bytearray(one * 3)
    broken[2 * len(one) + 87] = 99
    with pytest.raises(ProtocolError, match=r"record 2, at byte .* do not fill it"):
        decode_columns(broken)


def test_block_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_MAX_UNPACKED", 1500)
    block = block_of([StoredMessage(topic="t", body=bytes(1000), sys_flag=0x301)])
    assert decode_columns(block).body.to_pylist() == [bytes(1000)]
    with pytest.raises(ProtocolError, match="one block unpack"):
        decode_columns(block * 2)


def test_body_that_cannot_be_unpacked_stays_and_says_so() -> None:
    whole = zlib.compress(b"to be")
    records = encode_records("t", 0, [b"plain", whole, b"no zlib", whole[:6], bytes(9)])
    flags = records.data
    for start in records.starts[1:].tolist():
        flags[start + 39] = 0x01
    block = bytes(flags)
    columns = decode_columns(block)
    bodies = [b"plain", b"to be", b"no zlib", whole[:6], bytes(9)]
    assert columns.body.to_pylist() == bodies
    assert columns.packed.tolist() == [False, False, True, True, True]
    with pytest.raises(ProtocolError, match="cannot be unpacked"):
        columns.readable_body(2)
    messages = decode_messages(block)
    assert [message.body for message in messages] == bodies
    assert [message.is_packed for message in messages] == columns.packed.tolist()


def test_bodies_are_unpacked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_PIECE_BYTES", 1500)
    messages = [
        StoredMessage(topic="t", queue_offset=n, body=b"%d" % n * 1000, sys_flag=0x301 * (n != 3))
        for n in range(7)
    ]
    pieces = list(decode_columns(block_of(messages), unpack=False).unpacked())
    assert [piece.queue_offset.tolist() for piece in pieces] == [[0, 1], [2, 3, 4], [5, 6]]
    assert [b for p in pieces for b in p.body.to_pylist()] == [m.body for m in messages]
    assert [len(p) for p in decode_columns(b"", unpack=False).unpacked()] == [0]


@given(st.lists(st.binary(max_size=30) | properties().map(raw_properties), max_size=8))
def test_property_column_follows_the_rules_of_single_messages(raw: list[bytes]) -> None:
    column = pa.array([b"unused", *raw], pa.binary()).slice(1)
    for name in ("KEYS", "TAGS", "K"):
        wanted = [decode_properties(one).get(name) for one in raw]
        found = property_column(column, name).to_pylist()
        assert [v if v is None else v.decode("utf-8", "replace") for v in found] == wanted


@given(
    st.lists(
        st.lists(st.sampled_from([b"K", b"KK", b"\x01", b"\x02", b"v", b""]), max_size=9).map(
            b"".join
        ),
        max_size=6,
    )
)
def test_property_column_is_right_for_crowded_separators(raw: list[bytes]) -> None:
    column = pa.array(raw, pa.binary())
    wanted = [decode_properties(one).get("K") for one in raw]
    found = property_column(column, "K").to_pylist()
    assert [v if v is None else v.decode() for v in found] == wanted
    names = [
        {pair.partition(b"\x01")[0] for pair in one.split(b"\x02") if b"\x01" in pair}
        for one in raw
    ]
    others = [row for row, found in enumerate(names) if found - {b"K"}]
    assert rows_with_others(column, {b"K"}).tolist() == others
