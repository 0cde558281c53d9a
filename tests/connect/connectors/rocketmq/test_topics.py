"""Which topics are replicated, and what they are called."""

from __future__ import annotations

import pytest

from headrace.connect.connectors.rocketmq import RocketMQSinkConnector, RocketMQSourceConnector
from headrace.connect.connectors.rocketmq.settings import is_internal
from tests.connect.connectors.runs import problems

SOURCE = {"rocketmq.namesrv": "127.0.0.1:9876", "rocketmq.topics": "orders"}
SINK = {"rocketmq.namesrv": "127.0.0.1:9876", "local.cluster": "here"}


@pytest.mark.parametrize(
    "name",
    [
        "%DLQ%g",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "TBW102",
        "DefaultCluster_REPLY_TOPIC",
        "job-count-stateTopic",
        "job-commitTopic",
        "job-journalTopic",
    ],
)
def test_what_brokers_groups_and_jobs_keep_for_themselves_is_internal(name: str) -> None:
    assert is_internal(name)


@pytest.mark.parametrize("name", ["orders", "stateTopic", "rmq-orders", "job-a-shuffleTopic"])
def test_what_users_read_is_not(name: str) -> None:
    assert not is_internal(name)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"topic.rename.regex": "a.*"}, "topic.rename.replacement is missing"),
        ({"topic.rename.replacement": "b"}, "topic.rename.regex is missing"),
        ({"topic.rename.regex": "(a)", "topic.rename.replacement": r"\2"}, "does not fit"),
        ({"topic.rename.regex": "(", "topic.rename.replacement": "b"}, "no regular expression"),
    ],
)
def test_a_renaming_that_cannot_work_is_refused(keys: dict[str, str], problem: str) -> None:
    for kind, texts in ((RocketMQSourceConnector, SOURCE), (RocketMQSinkConnector, SINK)):
        (found,) = problems(kind, texts | keys)
        assert problem in found


def test_several_topics_must_not_become_one_by_accident() -> None:
    (found,) = problems(
        RocketMQSourceConnector, SOURCE | {"rocketmq.topics": "^o.*", "topic.format": "all"}
    )
    assert "topic.format" in found


def test_a_start_that_is_no_time_is_refused() -> None:
    (found,) = problems(RocketMQSourceConnector, SOURCE | {"start.from": "yesterday"})
    assert "ISO 8601" in found
