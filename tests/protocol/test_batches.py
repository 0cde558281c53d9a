from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from headrace.errors import MessageRejectedError, ProtocolError
from headrace.protocol import records as batches
from headrace.protocol.messages import decode_messages
from headrace.protocol.records import batch_to_records, write_mini_message
from tests.protocol.reference import damaged, hosts, properties, raw_properties

MINI = st.tuples(st.binary(max_size=20), properties(), st.sampled_from([0, 0, 7, -1]))


def batch_of(rows: list[tuple[bytes, dict[str, str], int]]) -> bytes:
    return b"".join(
        b"".join(write_mini_message(body, raw_properties(values), flag))
        for body, values, flag in rows
    )


@pytest.mark.parametrize("worth", [1, 1 << 30], ids=["columns", "loop"])
@given(rows=st.lists(MINI, max_size=6), host=hosts())
def test_batch_becomes_records(
    worth: int, rows: list[tuple[bytes, dict[str, str], int]], host: tuple[str, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "_WORTH_COLUMNS", worth)
        records = batch_to_records(batch_of(rows), "t", 3, 99, 0x34, 5, host, b"TAGS\x01none")
    found = decode_messages(records.data)
    assert len(records) == len(found) == len(rows)
    v6 = 0x10 if ":" in host[0] else 0
    for message, (body, values, flag) in zip(found, rows, strict=True):
        assert (message.topic, message.queue_id, message.born) == ("t", 3, 99)
        assert (message.sys_flag, message.born_host) == (0x04 | v6, host)
        assert (message.body, message.flag) == (body, flag or 5)
        assert message.properties == {"TAGS": "none"} | values


@given(st.lists(MINI, min_size=1, max_size=5))
def test_columns_and_loop_write_the_same_bytes(
    rows: list[tuple[bytes, dict[str, str], int]],
) -> None:
    batch = batch_of(rows)
    made = []
    with pytest.MonkeyPatch.context() as patch:
        for worth in (1, 1 << 30):
            patch.setattr(batches, "_WORTH_COLUMNS", worth)
            made.append(batch_to_records(memoryview(batch), "t", 0, 1, 2, 0))
    assert made[0].data == made[1].data
    assert made[0].starts.tolist() == made[1].starts.tolist()


@pytest.mark.parametrize("worth", [1, 1 << 30], ids=["columns", "loop"])
@given(data=st.data())
def test_damage_is_read_or_a_protocol_error(worth: int, data: st.DataObject) -> None:
    batch = data.draw(st.lists(MINI, max_size=4).map(batch_of))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "_WORTH_COLUMNS", worth)
        try:
            records = batch_to_records(data.draw(damaged(batch)), "t", 0)
        except ProtocolError:
            return
    assert len(decode_messages(records.data)) == len(records)


@pytest.mark.parametrize("count", [1, 100])
def test_properties_that_are_too_long_are_refused(count: int) -> None:
    batch = batch_of([(b"", {"a": "x" * 32_000}, 0)] * count)
    assert len(batch_to_records(batch, "t", 0)) == count
    with pytest.raises(MessageRejectedError, match="are possible"):
        batch_to_records(batch, "t", 0, extra_properties=b"b\x01" + b"y" * 1000)


def test_misfit_is_named() -> None:
    batch = bytearray(batch_of([(b"abc", {}, 0)] * 100))
    with pytest.raises(ProtocolError, match="does not end"):
        batch_to_records(batch[:-1], "t", 0)
    batch[25 * 70 + 19] = 99
    with pytest.raises(ProtocolError, match="message 70 of a batch"):
        batch_to_records(batch, "t", 0)
