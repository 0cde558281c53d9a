"""Against a real node of OpenSearch, and one of Elasticsearch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.connect import SinkRecord
from headrace.connect.connectors.elasticsearch import ElasticsearchSinkConnector
from headrace.connect.connectors.http.sink import RefusedError
from headrace.connect.testing import SinkTaskKit
from headrace.errors import ConnectorConfigError
from tests.connect.connectors.sinks import Life, record
from tests.connect.servers.search import SearchServer

#: One of them forbids the node to make indices, for a moment.
pytestmark = pytest.mark.together("search")


def config(server: SearchServer, index: str, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return {"url": server.url, "index": index, **given}


def write(texts: dict[str, str], records: Sequence[SinkRecord], *, tolerant: bool = False) -> Life:
    with Life(ElasticsearchSinkConnector, texts, tolerant=tolerant) as life:
        life.write(records)
    return life


def test_records_become_documents_once_however_often_they_come(node: SearchServer) -> None:
    index = node.index()
    records = [record(number, {"n": number}) for number in range(1200)]
    for _ in range(2):
        write(config(node, index), records)
    found = node.documents(index)
    assert sorted(found["n"] for found in found.values()) == list(range(1200))
    assert found["orders+broker-a+0+7"] == {"n": 7}


def crash(kit: SinkTaskKit) -> None:
    task: Any = kit.task
    kit.crash()
    task.stop()  # the process would be gone, and its connections with it


@pytest.mark.requirement(45)
def test_no_document_is_doubled_or_lost_wherever_the_task_is_killed(
    node: SearchServer,
) -> None:
    index = node.index()
    texts = {**config(node, index), "topics": "t"}
    with SinkTaskKit(ElasticsearchSinkConnector, texts) as kit:
        for first in range(0, 20, 4):
            kit.send(*({"n": first + more} for more in range(4)))
            kit.put(2)
            crash(kit)  # between put and flush
            kit.put(3)
            kit.flush(commit=False)
            crash(kit)  # between flush and commit
            kit.deliver()
            crash(kit)
    found = node.documents(index).values()
    assert sorted(one["n"] for one in found) == list(range(20))


def test_last_record_of_a_key_is_its_document(node: SearchServer) -> None:
    index = node.index()
    by_key = config(node, index, document_id="key", tombstones="delete")
    records = [
        record(0, {"n": 0}, "a"),
        record(1, {"n": 1}, "b"),
        record(2, {"n": 2}, "a"),
        record(3, None, "b"),
        record(4, None, "never there"),
    ]
    write(by_key, records)
    assert node.documents(index) == {"a": {"n": 2}}
    # An earlier batch that comes again changes nothing for good.
    write(by_key, records[:2])
    write(by_key, records[1:])
    assert node.documents(index) == {"a": {"n": 2}}


def test_earlier_record_never_takes_a_later_ones_place(node: SearchServer) -> None:
    index = node.index()
    by_key = config(node, index, document_id="key")
    write(by_key, [record(5, {"n": 5}, "a")])
    write(by_key, [record(3, {"n": 3}, "a")])
    assert node.documents(index) == {"a": {"n": 5}}
    write({**by_key, "version": "none"}, [record(3, {"n": 3}, "a")])
    assert node.documents(index) == {"a": {"n": 3}}


def test_upsert_keeps_other_fields_and_create_keeps_the_document(node: SearchServer) -> None:
    index = node.index()
    by_key = config(node, index, document_id="key")
    upserting = {**by_key, "write": "upsert"}
    write(upserting, [record(0, {"a": 1, "b": 1}, "k"), record(1, {"b": 2}, "k")])
    assert node.documents(index) == {"k": {"a": 1, "b": 2}}
    write({**by_key, "write": "create"}, [record(2, {"c": 3}, "k"), record(3, {"d": 4}, "new")])
    assert node.documents(index) == {"k": {"a": 1, "b": 2}, "new": {"d": 4}}


def test_document_that_does_not_fit_the_mapping_is_reported(node: SearchServer) -> None:
    index = node.index(properties={"n": {"type": "integer"}})
    values: list[Any] = [{"n": 0}, {"n": "many"}, "no document", {"n": 3}]
    records = [record(number, value) for number, value in enumerate(values)]
    life = write(config(node, index), records, tolerant=True)
    assert sorted(life.errant_offsets) == [1, 2]
    assert sorted(one["n"] for one in node.documents(index).values()) == [0, 3]
    with pytest.raises(RefusedError, match="mapper_parsing_exception"):
        write(config(node, index), records[1:2])


def test_index_of_topic_and_day_is_made(node: SearchServer) -> None:
    given = [
        record(number, {"n": number}, topic="Days").replace(timestamp_ms=number * 86_400_000)
        for number in range(2)
    ]
    write(config(node, "{topic}-{date}"), given)
    assert node.documents("days-1970.01.01") == {"orders+broker-a+0+0": {"n": 0}}
    assert node.documents("days-1970.01.02") == {"orders+broker-a+0+1": {"n": 1}}


def test_index_that_may_not_be_made_ends_the_task(node: SearchServer) -> None:
    setting = "action.auto_create_index"
    node.ask("PUT", "_cluster/settings", {"transient": {setting: "false"}})
    try:
        with pytest.raises(ConnectorConfigError, match="index_not_found_exception"):
            write(config(node, "nowhere"), [record(0, {})])
    finally:
        node.ask("PUT", "_cluster/settings", {"transient": {setting: None}})
