from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import orjson
import pytest

from headrace.connect import SchemaError
from headrace.connect.connectors.elasticsearch import ElasticsearchSinkConnector
from headrace.connect.connectors.elasticsearch.sink import Operations
from tests.connect.connectors.runs import problems
from tests.connect.connectors.sinks import record


def lines(one: Any, **config: str) -> list[Any]:
    given = {"url": "http://s", **{name.replace("_", "."): text for name, text in config.items()}}
    operations = Operations.of_config(ElasticsearchSinkConnector.config.parse(given))
    operation = operations.of(one)
    assert operation is not None
    return [orjson.loads(line) for line in operation.lines.splitlines()]


def test_place_is_the_id() -> None:
    assert lines(record(7, {"a": 1})) == [
        {"index": {"_index": "orders", "_id": "orders+broker-a+0+7"}},
        {"a": 1},
    ]


def test_key_is_the_id_and_offset_the_version() -> None:
    by_key = {"document_id": "key"}
    action = {"_index": "orders", "_id": "k", "version": 8, "version_type": "external"}
    assert lines(record(7, {}, "k"), **by_key)[0] == {"index": action}
    del action["version"], action["version_type"]
    assert lines(record(7, {}, "k"), **by_key, version="none")[0] == {"index": action}
    assert lines(record(7, {}, "k"), **by_key, write="create")[0] == {"create": action}


def test_struct_as_key_is_its_json() -> None:
    [action, _] = lines(record(7, {}, {"shop": 1, "order": 2}), document_id="key")
    assert action["index"]["_id"] == '{"shop":1,"order":2}'


def test_upsert_sets_fields() -> None:
    assert lines(record(7, {"a": 1}, "k"), document_id="key", write="upsert") == [
        {"update": {"_index": "orders", "_id": "k", "retry_on_conflict": 3}},
        {"doc": {"a": 1}, "doc_as_upsert": True},
    ]


def test_index_follows_topic_and_time() -> None:
    moment = dt.datetime(2026, 3, 1, 23, 30, tzinfo=dt.UTC)
    given = record(7, {}, topic="Web.Logs").replace(timestamp_ms=round(moment.timestamp() * 1000))
    assert lines(given, index="raw-{topic}-{date}")[0]["index"]["_index"] == (
        "raw-web.logs-2026.03.01"
    )
    monthly = {"index": "{date}", "index_date_format": "%Y-%m"}
    assert lines(given, **monthly)[0]["index"]["_index"] == "2026-03"
    with pytest.raises(SchemaError, match="record 7 of queue 0 of topic orders has no time"):
        lines(record(7, {}), **monthly)


def test_values_become_json() -> None:
    value = {"price": Decimal("1.50"), "at": dt.datetime(2026, 3, 1, tzinfo=dt.UTC), "raw": b"ab"}
    assert lines(record(0, value))[1] == {
        "price": "1.50",
        "at": "2026-03-01T00:00:00Z",
        "raw": "YWI=",
    }


def test_tombstone_does_what_was_asked_for() -> None:
    gone = record(7, None, "k")
    deleting = {"document_id": "key", "tombstones": "delete"}
    assert list(lines(gone, **deleting)[0]) == ["delete"]
    assert Operations(tombstones="ignore").of(gone) is None
    with pytest.raises(SchemaError, match="has no value") as caught:
        Operations().of(gone)
    assert "tombstones=delete" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "key", "problem"),
    [
        ("text", "k", "a value of the type str, and a document has fields"),
        ({}, None, "has no key, which is the document's id"),
        ({}, "", "has 0 bytes as a document's id"),
        ({}, "k" * 513, "has 513 bytes as a document's id"),
    ],
)
def test_record_that_makes_no_document_is_named(value: Any, key: Any, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem):
        Operations(id="key").of(record(7, value, key))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"tombstones": "delete"}, "tombstones=delete needs document.id=key"),
        ({"username": "u", "password": "p", "api.key": "k"}, "Give one of username and api.key"),
        ({"url": "localhost:9200"}, "URL"),
        ({"url": "http://user:password@search:9200"}, "without a user"),
        ({"write": "insert"}, "index, create or upsert"),
    ],
)
def test_config_that_cannot_be_is_named(keys: dict[str, str], problem: str) -> None:
    given = {"url": "http://s", **keys}
    assert any(problem in one for one in problems(ElasticsearchSinkConnector, given))
