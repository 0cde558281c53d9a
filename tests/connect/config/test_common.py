"""Common keys: other names, and what holds for them together."""

from __future__ import annotations

import pytest

from headrace.connect.config.chain import Role, common_keys, common_problems, normal
from headrace.errors import ConnectorConfigError


@pytest.mark.parametrize(
    ("role", "texts", "named"),
    [
        ("sink", {"max.tasks": "2"}, {"tasks.max": "2"}),
        ("sink", {"connect.topicnames": "a;b"}, {"topics": "a,b"}),
        ("sink", {"connect.topicname": "a"}, {"topics": "a"}),
        ("source", {"connect.topicname": "a"}, {"topic": "a"}),
        ("source", {"connect.topicnames": "a"}, {"connect.topicnames": "a"}),
        (
            "sink",
            {"consumer.override.auto.offset.reset": "earliest"},
            {"consume.from.where": "first"},
        ),
        (
            "sink",
            {
                "errors.deadletterqueue.write.queue.nums": "4",
                "errors.deadletterqueue.read.queue.nums": "4",
            },
            {"errors.deadletterqueue.topic.queues": "4"},
        ),
    ],
)
def test_other_names_become_our_own(
    role: Role, texts: dict[str, str], named: dict[str, str]
) -> None:
    assert normal(texts, role) == named


@pytest.mark.parametrize(
    ("role", "texts"),
    [
        ("sink", {"max.tasks": "2", "tasks.max": "1"}),
        ("source", {"connect.topicname": "a", "topic": "b"}),
        ("sink", {"connect.topicnames": "a,b", "topics": "a"}),
    ],
)
def test_names_of_the_same_key_that_disagree_are_refused(role: Role, texts: dict[str, str]) -> None:
    with pytest.raises(ConnectorConfigError, match="mean the same and disagree"):
        normal(texts, role)


def test_names_of_the_same_key_may_agree() -> None:
    assert normal({"max.tasks": "2", "tasks.max": "2"}) == {"tasks.max": "2"}


@pytest.mark.defect(6)
def test_dead_letters_never_come_back_as_records() -> None:
    for topics in ({"topics": "a,dead"}, {"topics.regex": "de.*"}):
        (problem,) = common_problems(topics | {"errors.deadletterqueue.topic.name": "dead"}, "sink")
        assert "would come back for ever" in problem.message


def test_source_needs_no_topics() -> None:
    assert common_problems({}, "source") == []


@pytest.mark.parametrize("role", ["source", "sink"])
def test_defaults_of_common_keys_pass_their_own_checks(role: Role) -> None:
    for key in common_keys(role):
        if key.default is not None:
            assert key.parse(key.write(key.default) or "") == key.default
