"""What only members of a group can answer, and what tools ask about groups."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from headrace.broker import EmbeddedBroker
from headrace.broker.offsets import ClientRequests
from headrace.broker.settings import Limits
from headrace.errors import RequestTimeoutError
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Command, encode
from headrace.protocol.routes import loads
from tests.broker.wire import JobWire, Wire


def join(wire: Wire, client: str, group: str = "g", *, notified: bool = True) -> None:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": "t"}]}
    body = msgspec.json.encode({"clientID": client, "consumerDataSet": [consumer]})
    assert wire.ask(RequestCode.HEART_BEAT, body).code == 0
    while notified and not wire.told:
        wire.read()
    wire.told.clear()


def answer(wire: Wire, body: bytes = b"") -> Command:
    """Wait for what the broker asks a member, and answer it."""
    while not wire.told:
        wire.read()
    asked = wire.told.pop()
    wire.send_raw(b"".join(encode(asked.reply(ResponseCode.SUCCESS, None, None, body))))
    return asked


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        (RequestCode.GET_CONSUMER_RUNNING_INFO, {"jstackEnable": "false"}),
        (RequestCode.CONSUME_MESSAGE_DIRECTLY, {}),
    ],
)
def test_question_goes_to_the_member_and_its_answer_back(
    wire: JobWire, code: int, extra: dict[str, str]
) -> None:
    wire.create("t")
    sent = wire.put("t", b"x")
    with Wire(wire.address) as member:
        join(member, "a")
        ids = {} if extra else {"msgId": sent.ext["msgId"]}
        number = wire.send(code, consumerGroup="g", clientId="a", **extra, **ids)
        asked = answer(member, b"{running}")
        assert (asked.code, asked.ext["clientId"]) == (code, "a")
        assert (b"x" in bytes(asked.payload)) == (not extra)
        assert bytes(wire.receive(number).payload) == b"{running}"


def test_question_to_who_is_not_there_or_goes_is_an_error(wire: JobWire) -> None:
    wire.create("t")
    fields = {"consumerGroup": "g", "clientId": "a"}
    absent = wire.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields)
    assert (absent.code, absent.remark) == (1, "The Consumer <g> <a> not online")
    with Wire(wire.address) as member:
        join(member, "a")
        number = wire.send(RequestCode.GET_CONSUMER_RUNNING_INFO, **fields)
        while not member.told:
            member.read()
    gone = wire.receive(number)
    assert gone.code == 1
    assert "closed its connection" in (gone.remark or "")


class Deaf:
    """A client that does not answer, while another one answers in its place."""

    number = 1
    address = ("127.0.0.1", 1)
    limits = Limits()

    def __init__(self, requests: ClientRequests) -> None:
        self._requests = requests

    def send(self, command: Command) -> None:
        self._requests.answered(2, command.reply(ResponseCode.SUCCESS, None, None, b""))

    def hold(self, size: int) -> None: ...

    def release(self, size: int) -> None: ...


def test_answer_that_does_not_come_in_time_or_from_another_is_none() -> None:
    requests = ClientRequests()
    with pytest.raises(RequestTimeoutError, match=r"127\.0\.0\.1:1 did not answer"):
        asyncio.run(requests.ask(Deaf(requests), 307, {}, b"", 0.01))
    assert len(requests) == 0


def test_members_tell_how_far_they_are(wire: JobWire) -> None:
    wire.create("t")
    fields = {"topic": "t", "group": "g"}
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    assert wire.ask(code, **fields).code == ResponseCode.CONSUMER_NOT_ONLINE
    with Wire(wire.address) as member:
        join(member, "a")
        number = wire.send(code, **fields)
        # Java writes objects as the keys of objects.
        key = b'{"brokerName":"broker-a","queueId":0,"topic":"t"}'
        asked = answer(member, b'{"messageQueueTable":{' + key + b":7}}")
        assert asked.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        table = loads(wire.receive(number).payload, dict)["consumerTable"]
    assert [list(offsets.values()) for offsets in table.values()] == [[7]]


def test_broker_shares_queues_for_those_who_ask(wire: JobWire) -> None:
    wire.create("t", queues=3)
    join(wire, "a")
    with Wire(wire.address) as other:
        join(other, "b")

        def assigned(client: str, model: str = "CLUSTERING", rule: str = "AVG") -> Command:
            asked = {
                "topic": "t",
                "consumerGroup": "g",
                "clientId": client,
                "strategyName": rule,
                "messageModel": model,
            }
            return other.ask(RequestCode.QUERY_ASSIGNMENT, msgspec.json.encode(asked))

        def queues(found: Command) -> list[int]:
            rows = loads(found.payload, dict)["messageQueueAssignments"]
            return [row["messageQueue"]["queueId"] for row in rows]

        assert [queues(assigned(client)) for client in ("a", "b", "c")] == [[0, 1], [2], []]
        assert queues(assigned("c", "BROADCASTING")) == [0, 1, 2]
        assert assigned("a", rule="CIRCLE").code == ResponseCode.INVALID_PARAMETER


def test_group_that_wants_no_notices_gets_none(wire: JobWire) -> None:
    config = b'{"groupName":"quiet","notifyConsumerIdsChangedEnable":false}'
    wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)
    join(wire, "a", "quiet", notified=False)
    with Wire(wire.address) as other:
        join(other, "b", "quiet", notified=False)
    ids = {"consumerGroup": "quiet"}
    assert wire.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, **ids).code == 0
    assert wire.told == []


def test_time_span_of_a_topic_tells_how_late_a_group_is(wire: JobWire) -> None:
    wire.create("t", queues=1)
    for body in (b"a", b"b"):
        wire.put("t", body)
    wire.pull("t", 0, 1, sysFlag=5, commitOffset=1)
    found = wire.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="t", group="g")
    [row] = loads(found.payload, dict)["consumeTimeSpanSet"]
    assert row["minTimeStamp"] == row["consumeTimeStamp"] <= row["maxTimeStamp"]
    assert row["delayTime"] >= 0
    other = wire.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="t", group="h")
    assert loads(other.payload, dict)["consumeTimeSpanSet"][0]["consumeTimeStamp"] == -1


def test_offsets_of_a_group_are_cloned(wire: JobWire) -> None:
    wire.create("t", queues=2)
    wire.put("t", b"a", 1)
    wire.pull("t", 1, 1, sysFlag=5, commitOffset=1)
    code = RequestCode.CLONE_GROUP_OFFSET
    assert wire.ask(code, srcGroup="none", destGroup="h").code == 26
    assert wire.ask(code, srcGroup="g", destGroup="h", topic="t").code == 0
    asked = {"consumerGroup": "h", "topic": "t", "queueId": 1}
    assert wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, **asked).ext["offset"] == "1"
    # Also where a group was set back, and no member has heard of it yet.
    back = {"topic": "t", "group": "h", "timestamp": 0, "isForce": "true"}
    wire.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **back)
    assert wire.ask(code, srcGroup="g", destGroup="h", topic="t").code == 0
    assert wire.ask(RequestCode.QUERY_CONSUMER_OFFSET, **asked).ext["offset"] == "1"


def test_lag_of_a_group_that_never_came_is_all_there_is(wire: JobWire) -> None:
    wire.create("t", queues=1)
    wire.put("t", b"a")
    named = wire.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="never", topicList="t;none")
    [row] = loads(named.payload, dict)["offsetTable"].values()
    assert (row["brokerOffset"], row["consumerOffset"]) == (1, 0)


def test_pull_that_waits_hears_of_a_reset_at_once(wire: JobWire) -> None:
    wire.create("t", queues=1)
    wire.put("t", b"a")
    with Wire(wire.address) as member:
        number = member.start_pull("t", 0, 1, sysFlag=6, suspendTimeoutMillis=20_000)
        other = member.start_pull("t", 0, 1, sysFlag=6, suspendTimeoutMillis=200, consumerGroup="h")
        moved = {"topic": "t", "group": "g", "timestamp": 0, "isForce": "true"}
        wire.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **moved)
        told = member.receive(number)
        assert (told.code, told.ext["nextBeginOffset"]) == (21, "0")
        # Who waits for the same queue in another group waits on.
        assert member.receive(other).code == ResponseCode.PULL_NOT_FOUND


def test_sql_is_refused_before_it_is_used(wire: JobWire) -> None:
    asked = {"group": "g", "subscriptionData": {"topic": "t", "expressionType": "SQL92"}}
    refused = wire.ask(RequestCode.CHECK_CLIENT_CONFIG, msgspec.json.encode(asked))
    assert "filter message by SQL92" in (refused.remark or "")
    asked["subscriptionData"] = {"topic": "t", "expressionType": "TAG"}
    assert wire.ask(RequestCode.CHECK_CLIENT_CONFIG, msgspec.json.encode(asked)).code == 0


def test_second_version_of_heartbeats_tells_of_news(wire: JobWire) -> None:
    def beat(*, without: bool) -> str:
        told = [] if without else [{"topic": "t"}]
        consumer = {"groupName": "g", "subscriptionDataSet": told}
        body = {
            "clientID": "a",
            "consumerDataSet": [consumer],
            "heartbeatFingerprint": 7,
            "withoutSub": without,
        }
        ext = wire.ask(RequestCode.HEART_BEAT, msgspec.json.encode(body)).ext
        assert ext["IS_SUPPORT_HEART_BEAT_V2"] == "true"
        return ext["IS_SUB_CHANGE"]

    wire.create("t")
    assert [beat(without=without) for without in (False, False, True)] == ["true", "false", "false"]
    assert wire.pull("t", sysFlag=0).code == ResponseCode.PULL_NOT_FOUND


def test_unused_retry_topics_go(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker, Wire(broker.address) as wire:
        body = b'{"groupName":"gone"}'
        wire.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        wire.ask(RequestCode.CLEAN_UNUSED_TOPIC)
        assert wire.ask(RequestCode.GET_TOPIC_CONFIG, topic="%RETRY%gone").code == 0
        wire.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="gone")
        wire.ask(RequestCode.CLEAN_UNUSED_TOPIC)
        assert wire.ask(RequestCode.GET_TOPIC_CONFIG, topic="%RETRY%gone").code == 17
