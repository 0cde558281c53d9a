"""Converters in the chains of tasks: what a source says, a sink hears."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.connect.columns import SINK_SCHEMA
from headrace.connect.converters import schema_to_avro
from headrace.connect.handling import sink_chain, source_chain
from headrace.connect.plugins import SinkTask
from headrace.connect.records import Header, SinkBatch, SinkRecord, SourceRecord
from headrace.connect.schema import INT32, INT64, STRING, TIMESTAMP, Schema, decimal, struct

ORDER = struct(
    {"id": INT64, "item": STRING.as_optional(), "price": decimal(2), "at": TIMESTAMP},
    name="order",
)
VALUE = {
    "id": 7,
    "item": None,
    "price": Decimal("1.50"),
    "at": datetime(2020, 1, 2, tzinfo=UTC),
}


class Hearing(SinkTask):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[SinkRecord] = []

    def put(self, records: Sequence[SinkRecord]) -> None:
        self.records += records


class HearingColumns(Hearing):
    """Takes columns."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[SinkBatch] = []

    def put_batch(self, batch: SinkBatch) -> None:
        self.batches.append(batch)


def through(config: dict[str, str], records: list[SourceRecord], task: SinkTask) -> None:
    """Let a source say the records, and a sink with the same config hear them."""
    rows = source_chain("out", 0, config, wait=lambda _: False).encode(records).rows
    count = rows.num_rows
    columns = {
        "topic": rows.column("topic"),
        "broker": pa.repeat("b", count),
        "queue": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(range(count), pa.int64()),
        "key": rows.column("key"),
        "value": rows.column("value"),
        "properties": rows.column("properties"),
        "timestamp": rows.column("timestamp"),
    }
    heard = pa.RecordBatch.from_pydict(columns, schema=SINK_SCHEMA)
    sink_chain("in", 0, config, wait=lambda _: False).deliver(heard, task)


def said(**more: Any) -> SourceRecord:
    return SourceRecord(partition={}, offset={}, topic="orders", **more)


AVRO = {"value.converter": "avro", "value.converter.schema": json.dumps(schema_to_avro(ORDER))}


@pytest.mark.parametrize(
    ("config", "schema"),
    [
        ({"value.converter": "json"}, ORDER),
        ({"value.converter": "org.apache.kafka.connect.json.JsonConverter"}, ORDER),
        ({"value.converter": "json", "value.converter.decimal.format": "NUMERIC"}, ORDER),
        (AVRO, ORDER),
    ],
)
def test_a_sink_hears_values_and_schemas_that_a_source_says(
    config: dict[str, str], schema: Schema
) -> None:
    task = Hearing()
    through(config, [said(value=VALUE, value_schema=schema)], task)
    (record,) = task.records
    assert (record.value_schema, record.value) == (schema, VALUE)


def test_keys_values_and_headers_have_converters_of_their_own() -> None:
    config = {
        "key.converter": "integer",
        "value.converter": "json",
        "value.converter.schemas.enable": "false",
        "header.converter": "SimpleHeaderConverter",
    }
    headers = (Header("tries", 300), Header("who", "Ann"), Header("tags", ["a", "b"]))
    record = said(key=5, key_schema=INT32, value={"a": [1, 2.5]}, headers=headers)
    task = Hearing()
    through(config, [record], task)
    (found,) = task.records
    assert (found.key, found.key_schema) == (5, INT32.as_optional())
    assert (found.value, found.value_schema) == ({"a": [1, 2.5]}, None)
    assert {one.key: one.value for one in found.headers} == {
        "tries": 300,
        "who": "Ann",
        "tags": ["a", "b"],
    }


def test_json_without_keys_reaches_a_sink_as_columns() -> None:
    config = {
        "key.converter": "json",
        "value.converter": "json",
        "value.converter.schemas.enable": "false",
    }
    task = HearingColumns()
    through(config, [said(value={"a": number}) for number in range(3)], task)
    (batch,) = task.batches
    assert batch.value.to_pylist() == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert task.records == []
