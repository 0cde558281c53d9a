"""Records become rows by the keys that Kafka Connect's JDBC sink has."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.connect import SchemaError
from headrace.connect.connectors.sql import (
    COORDINATES,
    SINK_KEYS,
    MappingOptions,
    RowMapper,
    TableName,
    sink_problems,
    table_name,
)
from headrace.connect.schema import INT64, STRING, struct
from tests.connect.connectors.sinks import record


def mapper(**options: Any) -> RowMapper:
    return RowMapper(MappingOptions(**options))


def test_table_follows_the_topic() -> None:
    change = mapper(table="sales.${topic}_raw").change(record(0, {"a": 1}))
    assert change.table == TableName("sales", "orders_raw")


def test_a_dot_in_a_topic_parts_nothing() -> None:
    assert table_name("${topic}", "shop.orders") == TableName(None, "shop.orders")


def test_key_of_the_record_is_the_key_of_the_row() -> None:
    change = mapper(pk_mode="record_key").change(record(0, {"id": 9, "a": 1}, {"id": 7}))
    assert (change.keys, change.columns, change.row) == (("id",), ("id", "a"), (7, 1))


def test_key_that_is_a_single_value_takes_the_named_column() -> None:
    change = mapper(pk_mode="record_key", pk_fields=("id",)).change(record(0, {"a": 1}, "x"))
    assert (change.columns, change.row) == (("id", "a"), ("x", 1))


def test_field_of_the_value_is_the_key_of_the_row() -> None:
    change = mapper(pk_mode="record_value", pk_fields=("b",)).change(record(0, {"a": 1, "b": 2}))
    assert (change.columns, change.row) == (("b", "a"), (2, 1))


def test_place_of_the_record_is_the_key_of_the_row() -> None:
    change = mapper(pk_mode="coordinates").change(record(5, {"a": 1}))
    assert change.keys == COORDINATES
    assert change.row == ("orders", "broker-a", 0, 5, 1)


def test_fields_are_chosen() -> None:
    value = {"a": 1, "b": 2, "c": 3}
    assert mapper(include=frozenset({"a", "b"})).change(record(0, value)).columns == ("a", "b")
    assert mapper(exclude=frozenset({"a"})).change(record(0, value)).columns == ("b", "c")


def test_record_without_a_value_deletes() -> None:
    change = mapper(pk_mode="record_key", delete=True).change(record(0, None, {"id": 7}))
    assert (change.delete, change.row) == (True, (7,))


@pytest.mark.parametrize(
    ("options", "value", "key", "words"),
    [
        ({}, None, {"id": 1}, "has no value.*delete.enabled"),
        ({}, "text", None, "its value is str 'text'.*HoistField"),
        ({"pk_mode": "record_key"}, {"a": 1}, None, "has no key.*ValueToKey"),
        ({"pk_mode": "record_key"}, {"a": 1}, 5, "single value 5.*pk.fields"),
        ({"pk_mode": "record_value", "pk_fields": ("b",)}, {"a": 1}, None, "'b'.*missing or null"),
        ({"pk_mode": "record_value", "pk_fields": ("b",)}, {"b": [1]}, None, "'b'.*is a list"),
    ],
)
def test_record_that_cannot_be_a_row_says_where_why_and_what_to_do(
    options: dict[str, Any], value: Any, key: Any, words: str
) -> None:
    with pytest.raises(SchemaError, match=f"(?s)The record 3 of queue 0 of topic orders.*{words}"):
        mapper(**options).change(record(3, value, key))


def test_columns_have_the_types_of_the_schemas() -> None:
    one = mapper(pk_mode="record_key")
    made = record(
        0,
        {"name": "x", "count": 1},
        {"id": 7},
        key_schema=struct({"id": INT64.as_optional()}),
        value_schema=struct({"name": STRING, "count": INT64.as_optional()}),
    )
    columns = one.columns(one.change(made))
    assert [(each.name, str(each.schema), each.key) for each in columns] == [
        ("id", "int64", True),
        ("name", "string", False),
        ("count", "int64?", False),
    ]


def test_columns_without_a_schema_have_the_types_of_the_values() -> None:
    one = mapper()
    columns = one.columns(one.change(record(0, {"a": True, "b": 1.5, "c": None, "d": [1]})))
    assert [(each.name, str(each.schema)) for each in columns] == [
        ("a", "boolean?"),
        ("b", "double?"),
        ("d", "map<string, string>?"),
    ]


@pytest.mark.parametrize(
    ("config", "about"),
    [
        ({"insert.mode": "upsert"}, "pk.mode"),
        ({"delete.enabled": "true", "pk.mode": "coordinates"}, "delete.enabled"),
        ({"pk.mode": "record_value"}, "pk.fields"),
        ({"pk.mode": "kafka", "pk.fields": "a,b"}, "pk.fields"),
        ({"pk.fields": "a"}, "pk.fields"),
    ],
)
def test_config_that_contradicts_itself_is_named(config: dict[str, str], about: str) -> None:
    assert [one.key for one in sink_problems(SINK_KEYS.parse(config))] == [about]
