from __future__ import annotations

import pytest

from headrace.broker.topics import CLOSED_TOPICS, DEFAULT_TOPIC, TopicTable
from headrace.errors import InvalidParameterError, NoPermissionError, TopicNotFoundError
from headrace.protocol.routes import TopicConfig


def table() -> TopicTable:
    return TopicTable("DefaultCluster", "broker-a", 8)


def config(name: str = "t", queues: int = 4, perm: int = 6) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def test_template_cluster_and_broker_topics_exist_from_the_start() -> None:
    assert sorted(table()) == sorted(["DefaultCluster", "TBW102", "broker-a", *CLOSED_TOPICS])


def test_topic_is_created_and_changed() -> None:
    topics = table()
    topics.update(config(), "+cleanup.policy=COMPACTION")
    topics.update(config(queues=6))
    found = topics.get("t")
    assert (found.read_queue_nums, found.attributes) == (6, {"cleanup.policy": "COMPACTION"})


def test_saved_topics_come_back() -> None:
    topics = table()
    topics.update(config())
    again = TopicTable("DefaultCluster", "broker-a", 8, topics.configs())
    assert again.get("t") == topics.get("t")


@pytest.mark.parametrize(
    "changed",
    [
        config(name="a b"),
        config(name="x" * 128),
        config(name=""),
        config(queues=0),
        config(perm=8),
        config(name=DEFAULT_TOPIC),
    ],
    ids=["blank", "long", "empty", "no queues", "permission", "the broker's own"],
)
def test_settings_that_cannot_be_are_refused(changed: TopicConfig) -> None:
    with pytest.raises(InvalidParameterError):
        table().update(changed)


def test_unknown_topic_says_how_to_create_it() -> None:
    with pytest.raises(TopicNotFoundError, match="headrace topic create"):
        table().get("t")


def test_first_message_creates_a_topic_like_the_template() -> None:
    topics = table()
    before = topics.version
    created = topics.for_sending("t", DEFAULT_TOPIC, 4)
    assert (created.write_queue_nums, created.perm, topics.version - before) == (4, 6, 1)
    assert topics.for_sending("t", DEFAULT_TOPIC, 2) == created
    assert topics.version - before == 1


def test_template_limits_the_queues_of_a_new_topic() -> None:
    assert table().for_sending("t", DEFAULT_TOPIC, 100).write_queue_nums == 8


@pytest.mark.parametrize("template", ["", "missing", "plain"])
def test_without_a_template_no_topic_is_created(template: str) -> None:
    topics = table()
    topics.update(config("plain"))
    with pytest.raises(TopicNotFoundError):
        topics.for_sending("t", template, 4)


def test_read_only_topic_takes_no_messages() -> None:
    topics = table()
    topics.update(config(perm=4))
    with pytest.raises(NoPermissionError):
        topics.for_sending("t", DEFAULT_TOPIC, 4)


def test_deleted_topic_is_gone() -> None:
    topics = table()
    topics.create("t", queues=1)
    assert topics.delete("t")
    assert not topics.delete("t")
    with pytest.raises(InvalidParameterError):
        topics.delete(DEFAULT_TOPIC)
