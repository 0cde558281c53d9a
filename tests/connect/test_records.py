"""Records and batches."""

from __future__ import annotations

import pyarrow as pa

from headrace.connect.records import Header, Queue, SinkBatch, SourceBatch, SourceRecord


def test_last_header_of_a_name_counts() -> None:
    headers = (Header("a", 1), Header("b", 2), Header("a", 3))
    record = SourceRecord(partition={}, offset={}, topic="t", headers=headers)
    assert record.header("a") == Header("a", 3)
    assert record.header("c") is None


def test_records_of_a_source_batch_carry_its_position() -> None:
    headers = pa.array([[("h", b"1")], None], pa.map_(pa.string(), pa.binary()))
    batch = SourceBatch(
        partition={"file": "a"},
        offset={"byte": 9},
        topic="lines",
        value=pa.array(["x", "y"]),
        timestamp_ms=pa.array([1, 2]),
        headers=headers,
    )
    first, second = batch.records()
    assert (first.value, first.timestamp_ms, first.headers) == ("x", 1, (Header("h", b"1"),))
    assert (second.value, second.key, second.headers) == ("y", None, ())
    assert first.offset == second.offset == {"byte": 9}


def test_records_of_a_sink_batch_have_their_own_offsets() -> None:
    queue = Queue("lines", "broker-a", 0)
    batch = SinkBatch(queue=queue, offset=pa.array([7, 9]), value=pa.array([b"x", b"y"]))
    assert [(one.topic, one.offset, one.value) for one in batch.records()] == [
        ("lines", 7, b"x"),
        ("lines", 9, b"y"),
    ]


def test_maps_of_columns_become_dicts_however_deep() -> None:
    counts = pa.map_(pa.string(), pa.list_(pa.map_(pa.string(), pa.int64())))
    value = pa.array(
        [{"m": [("a", [[("x", 1)], None])]}, {"m": None}, None], pa.struct([("m", counts)])
    )
    batch = SourceBatch(partition={}, offset={}, topic="t", value=value)
    assert [record.value for record in batch.records()] == [
        {"m": {"a": [{"x": 1}, None]}},
        {"m": None},
        None,
    ]


def test_headers_of_columns_may_have_the_same_name_twice() -> None:
    headers = pa.array([[("h", b"1"), ("h", b"2")]], pa.map_(pa.string(), pa.binary()))
    batch = SourceBatch(partition={}, offset={}, topic="t", value=pa.array([1]), headers=headers)
    (record,) = batch.records()
    assert record.headers == (Header("h", b"1"), Header("h", b"2"))
