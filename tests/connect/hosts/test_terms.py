"""What a host tells the data plane of a config."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.connect.connectors.file import FileSinkConnector, FileSourceConnector
from headrace.connect.hosts.sink_unit import sink_terms
from headrace.connect.hosts.source_unit import source_terms
from headrace.connect.lifecycle import Terms
from headrace.connect.plugins.validation import read_config
from headrace.errors import ConnectorConfigError

SINK = {"name": "s", "connector.class": "file-sink", "file": "/out"}
SOURCE = {"name": "s", "connector.class": "file-source", "file": "/in", "topic": "lines"}


def sink(**more: str) -> Terms:
    texts = {name.replace("_", "."): text for name, text in more.items()}
    return sink_terms(read_config(FileSinkConnector, SINK | texts))


@pytest.mark.parametrize(
    ("texts", "terms"),
    [
        ({"topics": "a, b"}, {"topics": ["a", "b"]}),
        ({"connect_topicnames": "a;b"}, {"topics": ["a", "b"]}),
        ({"topics_regex": "a.*"}, {"pattern": "a.*"}),
        ({"topics": "a", "consume_from_where": "LATEST"}, {"topics": ["a"], "begin": "latest"}),
        (
            {"topics": "a", "consumer.override.auto.offset.reset": "earliest"},
            {"topics": ["a"], "begin": "first"},
        ),
        (
            {"topics": "a", "consume_from_where": "1970-01-01T01:00:01+01:00"},
            {"topics": ["a"], "begin": 1000},
        ),
        (
            {"topics": "a", "errors_deadletterqueue_topic_name": " dead "},
            {"topics": ["a"], "letters": "dead"},
        ),
    ],
)
def test_sink_says_what_it_reads_and_where_it_begins(
    texts: dict[str, str], terms: dict[str, Any]
) -> None:
    assert sink(**texts) == Terms(**{"queues": 8, **terms})


def test_values_from_outside_and_other_names_are_read_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_TOPIC", "orders")
    assert sink(topics="${env:HEADRACE_TEST_TOPIC}").topics == ["orders"]


@pytest.mark.parametrize("where", ["yesterday", "2026-05-01", "2026-05-01T12:00:00"])
def test_time_needs_a_zone(where: str) -> None:
    with pytest.raises(ConnectorConfigError, match=r"consume\.from\.where"):
        sink(topics="a", consume_from_where=where)


def test_source_says_how_many_queues_new_topics_have() -> None:
    texts = SOURCE | {"topic.creation.default.partitions": "9"}
    assert source_terms(read_config(FileSourceConnector, texts)) == Terms(queues=9)
