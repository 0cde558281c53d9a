"""Against a real node of OpenSearch, and one of Elasticsearch."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.connect.connectors.elasticsearch import ElasticsearchSourceConnector
from headrace.connect.connectors.elasticsearch.source import _MOST_IDS, Cursor
from headrace.errors import ConnectorConfigError, DeserializationError
from tests.connect.connectors.runs import problems, source
from tests.connect.servers.search import SearchServer

#: One of them forbids the node to make indices, for a moment.
pytestmark = pytest.mark.together("search")


def config(server: SearchServer, index: str, **more: str) -> dict[str, str]:
    given = {name.replace("_", "."): value for name, value in more.items()}
    quick = {"poll.interval.ms": "0", "batch.max.records": "3"}
    fixed = {"url": server.url, "index": index, "topic": "t", "cursor.field": "n"}
    return {**fixed, **quick, **given}


def add(server: SearchServer, index: str, *documents: Any) -> None:
    for document in documents:
        server.ask("POST", f"{index}/_doc", document)
    server.ask("POST", f"{index}/_refresh")


@pytest.mark.requirement(21)
def test_documents_come_once_in_the_order_of_the_field(node: SearchServer) -> None:
    index = node.index(properties={"n": {"type": "long"}})
    add(node, index, *({"n": number} for number in (3, 1, 2, 5, 4, 0)))
    with source(ElasticsearchSourceConnector, config(node, index)) as run:
        found = run.values(rounds=1)
        run.poll(rounds=1)
        run.kill()
        found += run.values()
        add(node, index, {"n": 6}, {"other": 1})
        found += run.values()
        run.kill()
        assert run.values() == []
    assert [one["n"] for one in found] == list(range(7))


def test_documents_that_share_a_value_all_come(node: SearchServer) -> None:
    index = node.index(properties={"at": {"type": "date"}})
    add(node, index, *({"at": "2026-03-01T12:00:00Z", "n": number} for number in range(8)))
    with source(ElasticsearchSourceConnector, config(node, index, cursor_field="at")) as run:
        found = []
        for _ in range(5):
            found += run.values(rounds=1)
            run.kill()
        assert run.values() == []
        add(node, index, {"at": "2026-03-01T12:00:00Z", "n": 8})
        found += run.values()
    assert sorted(one["n"] for one in found) == list(range(9))


def test_filter_and_delay_leave_documents_out(node: SearchServer) -> None:
    index = node.index(properties={"at": {"type": "date"}, "kind": {"type": "keyword"}})
    add(
        node,
        index,
        {"at": "2026-03-01", "kind": "a"},
        {"at": "2026-03-01", "kind": "b"},
        {"at": "2999-01-01", "kind": "a"},
    )
    texts = config(node, index, cursor_field="at", delay_ms="5 s")
    texts["query"] = '{"term": {"kind": "a"}}'
    with source(ElasticsearchSourceConnector, texts) as run:
        assert run.values() == [{"at": "2026-03-01", "kind": "a"}]
        [(partition, offset)] = run.committed.all()
    assert partition == {"index": index, "field": "at"}
    assert len(offset["ids"]) == 1


def test_index_that_comes_later_is_read_then(node: SearchServer) -> None:
    texts = config(node, "later-*")
    with source(ElasticsearchSourceConnector, texts) as run:
        assert run.values() == []
        add(node, "later-1", {"n": 1})
        assert run.values() == [{"n": 1}]


def test_field_that_does_not_sort_is_named(node: SearchServer) -> None:
    index = node.index(properties={"n": {"type": "text"}})
    add(node, index, {"n": "one"})
    with (
        source(ElasticsearchSourceConnector, config(node, index)) as run,
        pytest.raises(ConnectorConfigError, match=r"cursor\.field"),
    ):
        run.poll()


def test_too_many_documents_of_one_value_are_named() -> None:
    cursor = Cursor(7, tuple(map(str, range(_MOST_IDS))))
    assert cursor.behind(8, "next") == Cursor(8, ("next",))
    with pytest.raises(DeserializationError, match=r"have the value 7 of cursor\.field"):
        cursor.behind(7, "next")


def test_config_that_cannot_be_is_named() -> None:
    given = {"url": "http://s", "index": "i", "topic": "t", "cursor.field": "n", "query": "{"}
    assert "no JSON" in problems(ElasticsearchSourceConnector, given)[0]
