from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from headrace.errors import SettingsError
from headrace.spark.rocketmq.options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    AssignedQueues,
    Pattern,
    ReadOptions,
    Topics,
    read_options,
    write_options,
)
from headrace.spark.rocketmq.positions import AtEdge, AtOffsets, AtTime, AtTimes

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "build" / "spark-source.md"
NAMESRV = {"rocketmq.namesrv": "127.0.0.1:9876"}
LINES = {**NAMESRV, "subscribe": "lines"}


def stream(**given: str) -> ReadOptions:
    return read_options({**LINES, **given}, "stream")


def test_defaults_are_those_of_the_kafka_source() -> None:
    query, batch = stream(), read_options(LINES, "batch")
    assert query.starting == AtEdge("latest")
    assert (batch.starting, batch.ending) == (AtEdge("earliest"), AtEdge("latest"))
    assert query.fail_on_data_loss
    assert (query.max_offsets, query.min_partitions, query.group) == (None, None, None)


def test_topics_are_split_at_commas() -> None:
    options = read_options({**NAMESRV, "subscribe": "a, b,,a"}, "stream")
    assert options.subscription == Topics(("a", "b"))


def test_pattern_and_assignment_are_subscriptions() -> None:
    pattern = read_options({**NAMESRV, "subscribePattern": "li.*"}, "stream").subscription
    assert isinstance(pattern, Pattern)
    assert pattern.pattern.pattern == "li.*"
    assigned = read_options({**NAMESRV, "assign": '{"a": [0, "broker-a@1"]}'}, "batch")
    assert assigned.subscription == AssignedQueues({"a": {"0": 0, "broker-a@1": 0}})


def test_numbers_flags_and_durations_are_read() -> None:
    options = stream(
        maxOffsetsPerTrigger="1000",
        minPartitions="6",
        failOnDataLoss="False",
        groupId="shown",
        committed="true",
        **{"rocketmq.retryTimeout": "2 min"},
    )
    assert (options.max_offsets, options.min_partitions) == (1000, 6)
    assert not options.fail_on_data_loss
    assert (options.group, options.committed, stream().committed) == ("shown", True, False)
    assert options.cluster.client.retry_timeout == timedelta(minutes=2)


def test_a_timestamp_wins_over_offsets() -> None:
    options = stream(
        startingTimestamp="5",
        startingOffsetsByTimestamp='{"a": {"0": 1}}',
        startingOffsets="latest",
    )
    assert options.starting == AtTime("startingTimestamp", 5)
    options = stream(startingOffsetsByTimestamp='{"a": {"0": 1}}', startingOffsets="latest")
    assert options.starting == AtTimes("startingOffsetsByTimestamp", {"a": {"0": 1}})


def test_offsets_come_as_json() -> None:
    assert stream(startingOffsets='{"a": {"0": 7, "1": -2}}').starting == AtOffsets(
        "startingOffsets", {"a": {"0": 7, "1": -2}}
    )


@pytest.mark.parametrize(
    ("given", "says", "hint"),
    [
        ({"startingOffset": "earliest"}, "no option 'startingOffset'", "mean 'startingOffsets'?"),
        ({"maxoffsetspertriger": "5"}, "'maxoffsetspertriger'", "mean 'maxOffsetsPerTrigger'?"),
        ({"kafka.bootstrap.servers": "x:1"}, "kafka.bootstrap", "here it is rocketmq.namesrv"),
        ({"path": "lines"}, "'path'", "here it is subscribe"),
        ({"topic": "lines"}, "no option 'topic'", "'topic' is an option for writing"),
        ({"zzz": "1"}, "no option 'zzz'", "there are rocketmq.connectTimeout,"),
        ({"subscribePattern": "b"}, "has subscribe and subscribePattern", "subscribe"),
        ({"startingOffsets": "begin"}, "startingOffsets' is 'begin'", "earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "is '[1]'", "JSON object"),
        ({"startingOffsets": '{"a": 5}'}, "startingOffsets", "each queue of 'a'"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "startingOffsets", "queue 0 of 'a' has -3"),
        ({"startingOffsets": '{"a": {"0": true}}'}, "startingOffsets", "has True"),
        ({"startingTimestamp": "now"}, "startingTimestamp' is 'now'", "milliseconds since 1970"),
        (
            {"startingOffsetsByTimestampStrategy": "skip"},
            "Strategy' is 'skip': input should be 'error' or 'latest'",
            "begin at the end",
        ),
        (
            {"maxOffsetsPerTrigger": "0"},
            "maxOffsetsPerTrigger' is '0': input should be greater than or equal to 1",
            "of a query",
        ),
        ({"minPartitions": "many"}, "minPartitions' is 'many': give a whole number", "tasks"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss' is 'maybe': give true or false", "true"),
        ({"groupId": "a b"}, "groupId' is 'a b': it does not look like letters", "lag"),
        (
            {"rocketmq.requestTimeout": "5"},
            "requestTimeout' is '5': a duration is a number and a unit",
            "10 s",
        ),
        ({"rocketmq.accessKey": "a"}, "'rocketmq.secretKey' is missing", "Give rocketmq.accessKey"),
        ({"endingOffsets": "latest"}, "no meaning for a stream read", "no end"),
    ],
)
def test_wrong_options_of_a_stream_are_refused(given: dict[str, str], says: str, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_options({**LINES, **given}, "stream")
    assert says in caught.value.message
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": "latest"}, "a batch read would find nothing"),
        ({"endingOffsets": "earliest"}, "nothing comes before it"),
        ({"endingOffsets": '{"a": {"0": -2}}'}, "endingOffsets"),
        ({"maxOffsetsPerTrigger": "5"}, "no meaning for a batch read"),
        ({"groupId": "g"}, "no meaning for a batch read"),
    ],
)
def test_wrong_options_of_a_batch_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read_options({**LINES, **given}, "batch")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "a"}, "needs the option 'rocketmq.namesrv'"),
        (NAMESRV, "has none"),
        ({**NAMESRV, "subscribe": " , "}, "subscribe"),
        ({**NAMESRV, "subscribePattern": "("}, "subscribePattern"),
        ({**NAMESRV, "assign": "{}"}, "assign"),
        ({**NAMESRV, "assign": '{"a": 0}'}, "assign"),
        ({**NAMESRV, "assign": '{"a": [true]}'}, "assign"),
    ],
)
def test_a_read_needs_a_cluster_and_one_subscription(given: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read_options(given, "stream")


def test_options_of_a_write() -> None:
    # Spark adds the query's own options.
    given = {**NAMESRV, "topic": "out", "checkpointlocation": "/tmp/c", "queryname": "q"}
    assert write_options(given).topic == "out"
    assert write_options(NAMESRV).topic is None
    with pytest.raises(SettingsError, match="'topic' is ''"):
        write_options({**NAMESRV, "topic": ""})
    with pytest.raises(SettingsError, match="is an option for reading"):
        write_options({**NAMESRV, "subscribe": "out"})


def test_the_page_names_every_option() -> None:
    page = PAGE.read_text()
    assert [name for name in {**READ_OPTIONS, **WRITE_OPTIONS} if f"`{name}`" not in page] == []
