from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest

from headrace.client import AsyncAdmin, AsyncClient, ClientSettings, client as client_module
from headrace.client._connection import open_connection
from headrace.errors import (
    BrokerBusyError,
    ConnectionFailedError,
    NotFoundError,
    ProtocolError,
    RequestTimeoutError,
    SettingsError,
    TopicNotFoundError,
    UnknownBrokerError,
)
from headrace.protocol.codes import RequestCode, ResponseCode
from headrace.protocol.frames import Command, encode
from headrace.protocol.routes import BrokerData, ClusterInfo, QueueData, TopicRoute, dumps
from tests.client.scripted_server import Answer, ScriptedServer, scripted

FAST = ClientSettings(
    connect_timeout=timedelta(seconds=0.3),
    request_timeout=timedelta(seconds=0.3),
    retry_timeout=timedelta(seconds=3),
    retry_backoff=timedelta(milliseconds=5),
    retry_backoff_limit=timedelta(milliseconds=20),
)
HASTY = replace(FAST, retry_timeout=timedelta(seconds=0.3))
ASK = RequestCode.GET_MAX_OFFSET


def echo(command: Command) -> Command:
    return command.reply(ext=dict(command.ext))


def cluster_of(server: ScriptedServer, answer: Answer, *, write: int = 2) -> Answer:
    """Answer as a name server whose one broker is the same server."""

    def reply(command: Command) -> Command | None:
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            broker = BrokerData(broker_name="b", broker_addrs={"0": server.address})
            return command.reply(body=dumps(ClusterInfo(broker_addr_table={"b": broker})))
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            if command.ext["topic"] == "missing":
                return command.reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
            broker = BrokerData(broker_name="b", broker_addrs={"0": server.address})
            part = QueueData(broker_name="b", read_queue_nums=3, write_queue_nums=write)
            return command.reply(body=dumps(TopicRoute(broker_datas=[broker], queue_datas=[part])))
        return answer(command)

    return reply


def test_a_broker_is_asked_again_for_a_topic_that_the_name_server_does_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.client.admin._ROUTE_AGAIN", timedelta(seconds=0.1))

    async def scenario() -> list[str | None]:
        asked: list[str | None] = []

        def create(command: Command) -> Command:
            asked.append(command.ext.get("attributes"))
            return command.reply()

        async with scripted(echo) as server, AsyncClient(server.address, FAST) as client:
            known = cluster_of(server, create, write=3)

            def late(command: Command) -> Command | None:
                is_route = command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
                if is_route and len(asked) < 2:
                    return command.reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
                return known(command)

            server.answer = late
            await AsyncAdmin(client).create_topic("t", 3, attributes={"a": "b"})
        return asked

    # Only a new topic takes attributes.
    assert asyncio.run(scenario()) == ["+a=b", None]


def test_an_attempt_to_connect_lasts_no_longer_than_a_request() -> None:
    """By then who is asked may have another address, which the name server knows."""
    patient = replace(FAST, connect_timeout=timedelta(minutes=1))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        address = f"127.0.0.1:{full.getsockname()[1]}"
        with pytest.raises(ConnectionFailedError, match=r"no answer within 0\.3 s"):
            asyncio.run(open_connection(address, lambda _: None, patient))


def test_answers_are_matched_by_number_though_they_come_in_another_order() -> None:
    async def scenario() -> list[str]:
        held: list[Command] = []

        def last_first(command: Command) -> Command | None:
            held.append(command)
            if len(held) < 3:
                return None
            for request in held[:0:-1]:
                server.connections[0].writelines(encode(request.reply(ext=dict(request.ext))))
            return held[0].reply(ext=dict(held[0].ext))

        async with scripted(last_first) as server, AsyncClient(server.address, FAST) as client:
            answers = await asyncio.gather(
                *(client.invoke(server.address, Command(ASK, {"n": str(n)})) for n in range(3))
            )
            assert len(server.connections) == 1
            return [answer.ext["n"] for answer in answers]

    assert asyncio.run(scenario()) == ["0", "1", "2"]


def test_a_wrong_address_fails_soon_and_says_what_to_do() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"

    async def scenario() -> None:
        async with AsyncClient(address, FAST) as client:
            await client.route("lines")

    started = time.monotonic()
    with pytest.raises(ConnectionFailedError) as caught:
        asyncio.run(scenario())
    assert time.monotonic() - started < 2
    message = str(caught.value)
    assert f"cannot connect to {address}" in message
    assert "refused" in message
    assert "headrace broker --port" in message
    assert "--namesrv HOST:PORT" in message


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", ":9876", "host:port", "h:99999"]
)
def test_an_address_without_host_or_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(SettingsError, match="HOST:PORT"):
        AsyncClient(address)


def test_a_server_that_does_not_answer_gives_a_timeout() -> None:
    async def scenario() -> None:
        async with scripted(lambda command: None) as server, AsyncClient(server.address) as client:
            with pytest.raises(RequestTimeoutError, match=r"GET_MAX_OFFSET within 0\.05 s"):
                await client.invoke(
                    server.address, Command(ASK), timeout=timedelta(milliseconds=50)
                )
            assert client.statistics().pending == 0

    asyncio.run(scenario())


def test_a_lost_connection_fails_what_waits_and_the_next_request_connects_again() -> None:
    async def scenario() -> None:
        silent = True

        def answer(command: Command) -> Command | None:
            return None if silent else echo(command)

        async with scripted(answer) as server, AsyncClient(server.address, FAST) as client:
            waiting = asyncio.create_task(client.invoke(server.address, Command(ASK)))
            while not server.requests:
                await asyncio.sleep(0.001)
            server.drop_connections()
            with pytest.raises(ConnectionFailedError, match="was lost"):
                await waiting
            silent = False
            await client.invoke(server.address, Command(ASK))

    asyncio.run(scenario())


def test_a_peer_that_speaks_another_protocol_is_a_protocol_error() -> None:
    async def scenario() -> None:
        def web_server(command: Command) -> None:
            server.connections[0].write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        async with scripted(web_server) as server, AsyncClient(server.address, FAST) as client:
            await client.invoke(server.address, Command(ASK))

    with pytest.raises(ProtocolError):
        asyncio.run(scenario())


def test_a_restarted_broker_is_ridden_out() -> None:
    async def scenario() -> int:
        server = ScriptedServer(echo)
        server.answer = cluster_of(server, echo)
        await server.start()
        async with AsyncClient(server.address, FAST) as client:
            await client.ask_broker("b", lambda: Command(ASK))
            port = server.port
            await server.stop()
            asked = asyncio.create_task(client.ask_broker("b", lambda: Command(ASK)))
            await asyncio.sleep(0.5)
            assert not asked.done()
            await server.start(port)
            await asked
            retries = client.statistics().retries
        await server.stop()
        return retries

    assert asyncio.run(scenario()) > 3


def test_a_busy_broker_is_asked_again_and_a_refusal_is_not() -> None:
    async def scenario(code: ResponseCode, times: int) -> int:
        left = times

        def answer(command: Command) -> Command:
            nonlocal left
            left -= 1
            return command.reply(code, "not now") if left >= 0 else echo(command)

        async with scripted(echo) as server, AsyncClient(server.address, FAST) as client:
            server.answer = cluster_of(server, answer)
            await client.ask_broker("b", lambda: Command(ASK))
            return client.statistics().retries

    assert asyncio.run(scenario(ResponseCode.SYSTEM_BUSY, 4)) == 4
    with pytest.raises(UnknownBrokerError, match=r"refused GET_MAX_OFFSET: not now \(code 1\)"):
        asyncio.run(scenario(ResponseCode.SYSTEM_ERROR, 4))


def test_retrying_ends_with_the_last_error() -> None:
    hasty = ClientSettings(
        retry_timeout=timedelta(seconds=0.1), retry_backoff=timedelta(milliseconds=5)
    )

    async def scenario() -> None:
        async with scripted(echo) as server, AsyncClient(server.address, hasty) as client:
            busy = ResponseCode.SYSTEM_BUSY
            server.answer = cluster_of(server, lambda command: command.reply(busy, "full"))
            await client.ask_broker("b", lambda: Command(ASK))

    with pytest.raises(BrokerBusyError, match="full"):
        asyncio.run(scenario())


def test_final_errors_are_not_tried_again() -> None:
    async def scenario() -> None:
        async with scripted(echo) as server, AsyncClient(server.address, FAST) as client:
            busy = ResponseCode.SYSTEM_BUSY
            server.answer = cluster_of(server, lambda command: command.reply(busy, "full"))
            with pytest.raises(BrokerBusyError):
                await client.ask_broker("b", lambda: Command(ASK), final=(BrokerBusyError,))
            assert client.statistics().retries == 0

    asyncio.run(scenario())


def test_the_second_name_server_is_asked_when_the_first_is_away() -> None:
    async def scenario() -> list[int]:
        async with scripted(echo) as gone:
            away = gone.address
        async with scripted(echo) as server:
            server.answer = cluster_of(server, echo)
            async with AsyncClient(f"{away};{server.address}", FAST) as client:
                return [queue.queue_id for queue in await client.queues("lines")]

    assert asyncio.run(scenario()) == [0, 1, 2]


def test_the_second_name_server_is_asked_when_the_first_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sooner than any request would be given up, and first from then on."""
    monkeypatch.setattr(client_module, "_NEXT_NAME_SERVER", 0.05)

    async def scenario() -> list[int]:
        async with scripted(lambda _: None) as silent, scripted(echo) as server:
            server.answer = cluster_of(server, echo)
            async with AsyncClient(f"{silent.address};{server.address}") as client:
                for _ in range(3):
                    await client.brokers()
            return [len(silent.requests), len(server.requests)]

    began = time.monotonic()
    assert asyncio.run(scenario()) == [1, 3]
    assert time.monotonic() - began < 5


def test_routes_are_kept_for_a_while() -> None:
    async def scenario() -> None:
        async with scripted(echo) as server, AsyncClient(server.address, FAST) as client:
            server.answer = cluster_of(server, echo)
            reads = await client.queues("lines", for_="read")
            writes = await client.queues("lines", for_="write")
            assert [queue.name for queue in reads] == ["lines@b@0", "lines@b@1", "lines@b@2"]
            assert [queue.name for queue in writes] == ["lines@b@0", "lines@b@1"]
            assert len(server.requests) == 1
            await client.queues("lines", refresh=True)
            assert len(server.requests) == 2

    asyncio.run(scenario())


def test_a_missing_topic_and_an_unknown_broker_are_named() -> None:
    async def scenario() -> None:
        async with scripted(echo) as server, AsyncClient(server.address, FAST) as client:
            server.answer = cluster_of(server, echo)
            with pytest.raises(TopicNotFoundError) as caught:
                await client.queues("missing")
            assert "topic 'missing' does not exist" in str(caught.value)
            assert "headrace topic create missing" in str(caught.value)
            with pytest.raises(NotFoundError, match="no broker 'other'"):
                await client.broker_address("other")

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", ["no route", "a route without queues"])
def test_a_topic_that_must_exist_is_waited_for_until_a_broker_shows_it(answer: str) -> None:
    async def scenario() -> None:
        async with scripted(echo) as server, AsyncClient(server.address, HASTY) as client:
            there = cluster_of(server, echo)

            def away(command: Command) -> Command:
                if answer == "no route":
                    return command.reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
                return command.reply(body=dumps(TopicRoute(broker_datas=[], queue_datas=[])))

            def back_at_last(command: Command) -> Command | None:
                return away(command) if len(server.requests) < 4 else there(command)

            client.expect(["lines"])
            server.answer = back_at_last
            assert len(await client.queues("lines", for_="write")) == 2
            client.forget_route("lines")
            server.answer = away
            with pytest.raises(ConnectionFailedError, match="broker that holds lines is away") as e:
                await client.queues("lines")
            assert "do not make its topics anew" in str(e.value)

    asyncio.run(scenario())


def test_a_broker_that_must_exist_is_waited_for_until_it_is_known() -> None:
    async def scenario() -> None:
        async with scripted(echo) as server, AsyncClient(server.address, FAST) as client:
            there = cluster_of(server, echo)
            nobody = dumps(ClusterInfo(broker_addr_table={}))
            server.answer = lambda command: (
                command.reply(body=nobody) if len(server.requests) < 4 else there(command)
            )
            client.expect(["lines"])
            answer = await client.ask_broker("b", lambda: Command(ASK))
            assert answer.code == 0
            with pytest.raises(ConnectionFailedError, match="broker 'other' is away"):
                await client.broker_address("other")

    asyncio.run(scenario())


def test_requests_of_a_server_are_answered() -> None:
    async def scenario() -> list[Command]:
        async with scripted(echo) as server, AsyncClient(server.address, FAST) as client:
            stop = client.on_request(309, lambda command: command.reply(0, "here I am"))
            await client.invoke(server.address, Command(ASK))
            for number in (1, 2):
                server.connections[0].writelines(encode(Command(309, opaque=number)))
                while len(server.requests) < 1 + number:
                    await asyncio.sleep(0.001)
                if number == 1:
                    stop()
            return server.requests[1:]

    known, unknown = asyncio.run(scenario())
    assert (known.opaque, known.remark, known.is_response) == (1, "here I am", True)
    assert (unknown.opaque, unknown.code) == (2, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


def test_statistics_count_bytes_of_closed_connections_too() -> None:
    async def scenario() -> None:
        async with scripted(echo) as server, AsyncClient(server.address, FAST) as client:
            await client.invoke(server.address, Command(ASK, body=b"x" * 1000))
            before = client.statistics()
            server.drop_connections()
            await asyncio.sleep(0.01)
            await client.invoke(server.address, Command(ASK))
            after = client.statistics()
            assert before.bytes_sent > 1000
            assert after.bytes_sent > before.bytes_sent
            assert (after.requests, after.connections) == (2, 1)

    asyncio.run(scenario())
