"""Sending messages back: what goes over the wire when the broker refuses."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headrace.client import DEAD_LETTER, AsyncClient, MessageQueue, Outcome, Retry, StoredMessage
from headrace.client._consuming import SendBack
from headrace.protocol.codes import RequestCode
from headrace.protocol.frames import Command
from headrace.protocol.properties import decode_properties
from headrace.protocol.routes import LOGICAL_BROKER, BrokerData, QueueData, TopicRoute, dumps
from tests.client.scripted_server import ScriptedServer, scripted

QUEUE = MessageQueue("lines", "b", 3)
MESSAGE = StoredMessage(
    topic="lines",
    queue_offset=7,
    position=4711,
    body=b"x",
    properties={"UNIQ_KEY": "ID1", "KEYS": "k", "DELAY": "5"},
    reconsume_times=2,
)


def give_back(
    outcome: Outcome, queue: MessageQueue = QUEUE, *, refuses: bool = False
) -> list[Command]:
    """Give a message back and return the requests about it."""

    async def scenario() -> list[Command]:
        servers: list[ScriptedServer] = []

        def answer(command: Command) -> Command | None:
            if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                route = TopicRoute(
                    broker_datas=[
                        BrokerData(broker_name="b", broker_addrs={"0": servers[0].address})
                    ],
                    queue_datas=[QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1)],
                )
                return command.reply(body=dumps(route))
            if command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
                return command.reply(1 if refuses else 0)
            return command.reply(ext={"msgId": "m", "queueId": "0", "queueOffset": "0"})

        async with scripted(answer) as server:
            servers.append(server)
            async with AsyncClient(server.address) as client:
                await client.route("lines")
                await SendBack(client, "g", 16).give_back(queue, MESSAGE, outcome)
            skipped = (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO)
            return [command for command in server.requests if command.code not in skipped]

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("outcome", "level"),
    [
        (Retry(), "0"),
        (Retry(level=4), "4"),
        (Retry(timedelta(minutes=1)), "5"),
        (DEAD_LETTER, "-1"),
    ],
)
def test_the_broker_is_told_where_the_message_lies_and_how_long_to_wait(
    outcome: Outcome, level: str
) -> None:
    (request,) = give_back(outcome)
    assert request.code == RequestCode.CONSUMER_SEND_MSG_BACK
    assert {name: request.ext[name] for name in ("offset", "group", "delayLevel")} == {
        "offset": "4711",
        "group": "g",
        "delayLevel": level,
    }
    assert request.ext["maxReconsumeTimes"] == "16"
    assert (request.ext["originMsgId"], request.ext["originTopic"]) == ("ID1", "lines")


@pytest.mark.parametrize(
    ("outcome", "times", "wait"),
    [
        # RocketMQ's ladder: the third try waits as its level 5 says.
        (Retry(), "3", {"DELAY": "5"}),
        (Retry(level=2), "3", {"DELAY": "2"}),
        (Retry(timedelta(seconds=1)), "3", {"DELAY": "1"}),
        (Retry(timedelta(seconds=7)), "3", {"TIMER_DELAY_MS": "7000"}),
        # More than the maximum: the broker makes it a dead letter.
        (DEAD_LETTER, "17", {}),
    ],
)
def test_what_the_broker_refuses_is_sent_as_a_message_of_the_retry_topic(
    outcome: Outcome, times: str, wait: dict[str, str]
) -> None:
    *_, sent = give_back(outcome, refuses=True)
    assert (sent.code, sent.ext["b"], sent.ext["j"], sent.ext["l"]) == (
        RequestCode.SEND_MESSAGE_V2,
        "%RETRY%g",
        times,
        "16",
    )
    assert bytes(sent.payload) == b"x"
    properties = decode_properties(sent.ext["i"].encode())
    origin = {"UNIQ_KEY": "ID1", "ORIGIN_MESSAGE_ID": "ID1", "KEYS": "k", "RETRY_TOPIC": "lines"}
    assert properties == origin | wait


def test_a_static_topics_message_is_always_sent_anew() -> None:
    (sent,) = give_back(Retry(), MessageQueue("lines", LOGICAL_BROKER, 3))
    assert sent.code == RequestCode.SEND_MESSAGE_V2
