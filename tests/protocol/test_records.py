from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.errors import MessageRejectedError, MessageTooLargeError, ProtocolError
from headrace.protocol import records as records_module
from headrace.protocol.groups import java_hash
from headrace.protocol.layout import locate, record_starts
from headrace.protocol.messages import StoredMessage, decode_messages
from headrace.protocol.records import (
    RecordFields,
    Records,
    encode_record,
    encode_records,
    join_records,
    record_sizes,
)
from headrace.protocol.stamps import stamp_records, tag_hashes
from tests.protocol.reference import (
    INT,
    LONG,
    as_read,
    block_of,
    hosts,
    properties,
    raw_properties,
    stored_bytes,
    stored_messages,
)

TOPICS = st.sampled_from(["lines", "%RETRY%g", "d" * 127, "d" * 128])
UNSTAMPED = ("0.0.0.0", 0)
ROWS = st.lists(st.tuples(st.binary(max_size=30), properties(), LONG), max_size=8)


@given(ROWS, TOPICS, INT)
def test_columns_become_the_stored_layout(
    rows: list[tuple[bytes, dict[str, str], int]], topic: str, queue_id: int
) -> None:
    records = encode_records(
        topic,
        queue_id,
        pa.array([body for body, _, _ in rows], pa.binary()),
        [raw_properties(values) for _, values, _ in rows],
        np.array([born for _, _, born in rows], np.int64),
    )
    wanted = [
        stored_bytes(
            StoredMessage(
                topic=topic,
                queue_id=queue_id,
                body=body,
                properties=values,
                born=born,
                store_host=UNSTAMPED,
            )
        )
        for body, values, born in rows
    ]
    assert bytes(records.data) == b"".join(wanted)
    assert record_sizes(records).tolist() == [len(one) for one in wanted]
    assert records.starts.tolist() == record_starts(records.data).tolist()


@given(st.lists(st.binary(max_size=30), max_size=5), properties())
def test_all_records_can_share_one_properties_string(
    bodies: list[bytes], values: dict[str, str]
) -> None:
    raw = raw_properties(values)
    shared = encode_records("t", 1, bodies, raw, born=5)
    assert shared.data == encode_records("t", 1, bodies, [raw] * len(bodies), born=5).data


def test_text_slices_and_nulls_are_columns_too() -> None:
    wanted = encode_records("t", 0, [b"b", b""], [b"", b"K\x01v\x02"])
    bodies = pa.array(["a", "b", None, "d"]).slice(1, 2)
    raw = pa.array([b"x", None, b"K\x01v\x02"], pa.large_binary()).slice(1)
    assert encode_records("t", 0, bodies, raw).data == wanted.data
    view = pa.array([b"b", b""], pa.binary_view())
    assert encode_records("t", 0, view, raw).data == wanted.data


@given(st.binary(max_size=30), properties(), TOPICS, INT, LONG, hosts())
def test_single_record_has_the_stored_layout(
    body: bytes, values: dict[str, str], topic: str, number: int, long: int, host: tuple[str, int]
) -> None:
    fields = RecordFields(
        queue_id=number,
        born=long,
        born_host=host,
        flag=number,
        sys_flag=0x304,
        reconsume_times=number,
        prepared_offset=long,
    )
    record = encode_record(topic, body, raw_properties(values), fields)
    message = StoredMessage(
        topic=topic,
        queue_id=number,
        body=body,
        properties=values,
        born=long,
        born_host=host,
        store_host=UNSTAMPED,
        flag=number,
        sys_flag=0x304 | (0x10 if ":" in host[0] else 0),
        reconsume_times=number,
        prepared_offset=long,
    )
    assert bytes(record.data) == stored_bytes(message)


@given(
    st.lists(stored_messages(), max_size=5),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
)
def test_stamps_change_offset_position_and_store_only(
    messages: list[StoredMessage], offset: int, position: int, timestamp: int
) -> None:
    block = bytearray(block_of(messages))
    starts = record_starts(block)
    stamp_records(Records(block, starts), offset, position, timestamp, ("10.0.0.7", 10_911))
    wanted = map(as_read, messages)
    for number, (old, new) in enumerate(zip(wanted, decode_messages(block), strict=True)):
        v6 = old.sys_flag & 0x20
        assert new.queue_offset == offset + number
        assert new.position == position + int(starts[number])
        assert new.stored == timestamp
        assert new.store_host == ("::ffff:10.0.0.7" if v6 else "10.0.0.7", 10_911) or (
            v6 and new.store_host == ("::ffff:a00:7", 10_911)
        )
        same = ("topic", "body", "properties", "born", "born_host", "flag", "sys_flag", "size")
        assert [getattr(new, name) for name in same] == [getattr(old, name) for name in same]


def test_store_host_must_be_ipv4() -> None:
    records = encode_records("t", 0, [b"a"])
    with pytest.raises(ProtocolError, match="IPv4"):
        stamp_records(records, 0, 0, 0, ("::1", 1))
    with pytest.raises(ProtocolError, match="not names"):
        stamp_records(records, 0, 0, 0, ("localhost", 1))


def test_nothing_becomes_no_records() -> None:
    records = encode_records("t", 0, [])
    stamp_records(records, 0, 0, 0, ("127.0.0.1", 1))
    assert (len(records), bytes(records.data), tag_hashes(records).tolist()) == (0, b"", [])
    assert len(join_records([])) == 0
    assert record_sizes(records).tolist() == []


@given(st.lists(ROWS, max_size=4))
def test_joined_records_follow_one_another(
    parts: list[list[tuple[bytes, dict[str, str], int]]],
) -> None:
    made = [encode_records("t", 0, [body for body, _, _ in rows]) for rows in parts]
    joined = join_records(made)
    assert bytes(joined.data) == b"".join(part.data for part in made)
    assert joined.starts.tolist() == record_starts(joined.data).tolist()


@pytest.mark.parametrize("count", [3, 200])
def test_tag_hashes_are_javas(count: int) -> None:
    tags = ["", "red", "blue", "grün", "\U0001f30a"] * count
    raw = [f"KEYS\x01k\x02TAGS\x01{tag}\x02".encode() if tag else b"TAGSX\x01a\x02" for tag in tags]
    hashes = tag_hashes(encode_records("t", 0, [b"x"] * len(raw), raw))
    assert hashes.dtype == np.int32
    assert hashes.tolist() == [java_hash(tag) for tag in tags]


def test_tags_in_bodies_are_no_tags() -> None:
    for count in (1, 100):
        records = encode_records("t", 0, [b"TAGS\x01red\x02"] * count)
        view = Records(memoryview(bytes(records.data)), records.starts)
        assert tag_hashes(view).tolist() == [0] * count


def test_checksum_has_no_sign() -> None:
    bodies = [bytes([n]) for n in range(50)]
    found = [m.body_crc for m in decode_messages(encode_records("t", 0, bodies).data)]
    assert found == [zlib.crc32(body) & 0x7FFF_FFFF for body in bodies]


def test_properties_that_are_too_long_are_refused() -> None:
    longest = b"x" * 32_767
    for properties_ in (longest, [longest]):
        assert len(encode_records("t", 0, [b""], properties_)) == 1
    assert len(encode_record("t", b"", longest)) == 1
    with pytest.raises(MessageRejectedError, match="32768 bytes"):
        encode_records("t", 0, [b""], longest + b"x")
    with pytest.raises(MessageRejectedError, match="32768 bytes"):
        encode_records("t", 0, [b"", b""], [b"", longest + b"x"])
    with pytest.raises(MessageRejectedError, match="32768 bytes"):
        encode_record("t", b"", longest + b"x")


def test_topic_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(MessageRejectedError, match="40000 bytes"):
        encode_records("t" * 40_000, 0, [b""])
    with pytest.raises(MessageRejectedError, match="not valid text"):
        encode_record("\ud800", b"")


def test_number_out_of_range_is_refused() -> None:
    with pytest.raises(MessageRejectedError, match="out of range"):
        encode_record("t", b"", fields=RecordFields(queue_id=2**31))


def test_block_beyond_32_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "_HUGE", 300)
    with pytest.raises(MessageTooLargeError, match="3 messages for topic 't'"):
        encode_records("t", 0, [bytes(100)] * 3)


def test_locate_refuses_records_that_do_not_fill_their_size() -> None:
    block = bytearray(encode_records("t", 0, [b"abc", b"def"]).data)
    block[-1] = 7
    starts = record_starts(block)
    with pytest.raises(ProtocolError, match="record 1"):
        locate(block, starts)
