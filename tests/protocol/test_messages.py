from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from headrace.errors import MessageRejectedError, ProtocolError
from headrace.protocol.messages import Message, StoredMessage, decode_messages, encode_batch
from headrace.protocol.properties import decode_properties
from headrace.protocol.records import batch_to_records
from tests.protocol.reference import as_read, block_of, damaged, stored_bytes, stored_messages


@given(st.lists(stored_messages(), max_size=4))
def test_decode_reads_what_the_layout_says(messages: list[StoredMessage]) -> None:
    assert decode_messages(block_of(messages)) == list(map(as_read, messages))


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error(garbage: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert decode_messages(garbage) == []


@given(st.lists(stored_messages(), min_size=1, max_size=3).map(block_of), st.data())
def test_damage_is_read_or_a_protocol_error(block: bytes, data: st.DataObject) -> None:
    with contextlib.suppress(ProtocolError):
        decode_messages(data.draw(damaged(block)))


def test_cut_block_names_the_place() -> None:
    one = stored_bytes(StoredMessage(topic="lines", body=b"to be"))
    with pytest.raises(ProtocolError, match=f"byte {len(one)} "):
        decode_messages(one + one[:-1])


def test_known_fields_have_names() -> None:
    message = StoredMessage(
        topic="t",
        properties={"KEYS": "a b", "TAGS": "red", "UNIQ_KEY": "7F"},
        store_host=("127.0.0.1", 9876),
        position=42,
    )
    assert (message.keys, message.tags, message.unique_key) == ("a b", "red", "7F")
    assert message.offset_id == "7F00000100002694000000000000002A"
    assert StoredMessage(topic="t").keys is None


def test_message_writes_keys_tags_and_delay_as_properties() -> None:
    message = Message(
        topic="t", keys="k", tags="red", delay_level=3, properties={"a": "b", "KEYS": "lost"}
    )
    assert decode_properties(message.encoded_properties({"UNIQ_KEY": "u"})) == {
        "a": "b",
        "KEYS": "k",
        "TAGS": "red",
        "DELAY": "3",
        "UNIQ_KEY": "u",
    }


def test_message_with_a_broken_property_is_refused() -> None:
    with pytest.raises(MessageRejectedError, match="'a'"):
        encode_batch([Message(topic="t", properties={"a": ""})])


def test_batch_arrives_as_it_was_sent() -> None:
    sent = [Message(topic="t", body=bytes([n]) * n, keys=f"k{n}", flag=n) for n in range(1, 5)]
    records = batch_to_records(encode_batch(sent), "t", 2, born=7)
    found = decode_messages(records.data)
    assert [(m.body, m.keys, m.flag) for m in found] == [(m.body, m.keys, m.flag) for m in sent]
    assert {(m.topic, m.queue_id, m.born) for m in found} == {("t", 2, 7)}
