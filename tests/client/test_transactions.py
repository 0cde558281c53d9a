"""Transaction messages on both kinds of cluster: ends, checks, dead producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import (
    AsyncClient,
    AsyncPullConsumer,
    AsyncTransactionProducer,
    Client,
    LocalTransactionState,
    Message,
    PullConsumer,
    StoredMessage,
    TransactionProducer,
)
from headrace.errors import ConfigurationError
from headrace.protocol.codes import SysFlag
from tests.client.test_push import until
from tests.clusters import Cluster
from tests.java.clients import Java

MakeTopic = Callable[..., str]
COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("rocketmq", marks=pytest.mark.rocketmq)],
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Each kind of cluster in turn, with brokers that ask about half messages soon."""
    if request.param == "rocketmq":
        yield request.getfixturevalue("rocketmq")
        return
    soon = timedelta(milliseconds=300)
    settings = BrokerSettings(transaction_timeout=soon, transaction_check_interval=soon)
    with EmbeddedBroker(tmp_path_factory.mktemp("asking"), settings=settings) as broker:
        yield Cluster("embedded", broker.address)


def shown(client: Client, topic: str) -> list[StoredMessage]:
    (queue,) = client.queues(topic)
    return PullConsumer(client).pull(queue, 0).messages()


def never(message: StoredMessage) -> LocalTransactionState:
    raise AssertionError(f"nobody should ask about {message.body!r}")


def test_messages_are_shown_when_their_transaction_commits(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    seen: list[str] = []

    def local(message: Message, transaction: str) -> LocalTransactionState | None:
        seen.append(transaction)
        return ROLLBACK if message.body == b"rolled back" else None

    with TransactionProducer(client, f"{topic}-p", never) as producer:
        done = producer.send_in_transaction(
            Message(topic=topic, body=b"committed", keys="k", tags="t"), local
        )
        dropped = producer.send_in_transaction(Message(topic=topic, body=b"rolled back"), local)
        with producer.transaction(Message(topic=topic, body=b"block")) as half:
            assert b"block" not in [message.body for message in shown(client, topic)]
        with producer.transaction(Message(topic=topic, body=b"no")) as refused:
            refused.rollback()
        until(lambda: len(shown(client, topic)) == 2)
        assert (done.state, dropped.state) == (COMMIT, ROLLBACK)
        statistics = producer.transaction_statistics()
        assert (statistics.begun, statistics.committed, statistics.rolled_back) == (4, 2, 2)
        assert producer.asynchronous.statistics().messages == 4
    first, second = shown(client, topic)
    assert (first.body, first.keys, first.tags) == (b"committed", "k", "t")
    assert first.unique_key == done.id == seen[0]
    assert first.sys_flag & SysFlag.ROLLED_BACK == SysFlag.COMMITTED
    assert (second.body, second.unique_key) == (b"block", half.id)


def test_an_open_transaction_is_checked_with_a_member_that_lives(
    cluster: Cluster, client: Client, make_topic: MakeTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic(queues=1)
    group = f"{topic}-p"
    asked: list[bytes] = []
    tries: list[bytes] = []

    async def check(message: StoredMessage) -> LocalTransactionState:
        asked.append(message.body)
        assert message.topic == topic
        if message.body == b"twice" and not tries:
            tries.append(message.body)
            raise ValueError("the database is away")
        return ROLLBACK if message.body == b"undone" else COMMIT

    async def scenario() -> None:
        async with AsyncClient(cluster.namesrv) as connection:
            producer = AsyncTransactionProducer(connection, group, never)
            for body in (b"done", b"undone", b"twice"):
                await producer.begin(Message(topic=topic, body=body))
            # It dies with three transactions open.
            await producer.close()
            async with AsyncTransactionProducer(connection, group, check) as other:
                (queue,) = await connection.queues(topic)
                reader = AsyncPullConsumer(connection)

                async def found() -> set[bytes]:
                    return {m.body for m in (await reader.pull(queue, 0)).messages()}

                while b"undone" not in asked or await found() != {b"done", b"twice"}:
                    await asyncio.sleep(0.05)
                # A broker may ask again before it has seen the answer.
                counts = other.transaction_statistics()
                assert counts.checks == len(asked) >= 4
                assert counts.unknown == 1

    asyncio.run(scenario())
    # RocketMQ shows a message twice whose commit came twice.
    assert {message.body for message in shown(client, topic)} == {b"done", b"twice"}
    assert set(asked) == {b"done", b"twice", b"undone"}
    assert asked.count(b"twice") >= 2
    assert "ValueError: the database is away" in caplog.text
    assert "test_transactions.py" in caplog.text


def test_an_exception_leaves_the_decision_to_the_check(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(queues=1)
    committed: set[str] = set()

    def check(message: StoredMessage) -> LocalTransactionState:
        return COMMIT if message.unique_key in committed else ROLLBACK

    def local(message: Message, transaction: str) -> None:
        committed.add(transaction)
        raise OSError("the answer was lost, the work was done")

    with TransactionProducer(client, f"{topic}-p", check) as producer:
        with pytest.raises(OSError, match="the work was done"):
            producer.send_in_transaction(Message(topic=topic, body=b"done"), local)
        with pytest.raises(KeyError), producer.transaction(Message(topic=topic, body=b"failed")):
            raise KeyError
        until(lambda: producer.transaction_statistics().checks >= 2)
        until(lambda: {message.body for message in shown(client, topic)} == {b"done"})
        assert producer.transaction_statistics().rolled_back >= 1
        with pytest.raises(ConfigurationError, match="has a delay"):
            producer.begin(Message(topic=topic, delay_level=1))


@pytest.mark.rocketmq
def test_producers_in_java_and_here_answer_for_one_another(
    cluster: Cluster, client: Client, make_topic: MakeTopic, java: Java
) -> None:
    topic = make_topic(queues=1)
    group = f"{topic}-p"
    theirs = java.transaction_producer(cluster.namesrv, group, local="UNKNOW")
    theirs.send(topic, b"java's", how="transaction")
    theirs.kill()
    asked: list[bytes] = []

    def check(message: StoredMessage) -> LocalTransactionState:
        asked.append(message.body)
        return COMMIT

    with TransactionProducer(client, group, check):
        until(lambda: {message.body for message in shown(client, topic)} == {b"java's"})
    ours = TransactionProducer(client, group, never)
    ours.begin(Message(topic=topic, body=b"ours"))
    ours.close()
    with java.transaction_producer(cluster.namesrv, group, checks=("COMMIT_MESSAGE",)) as other:
        # A producer announces itself with its first send.
        other.send(topic, b"first", how="transaction")
        until(lambda: b"ours" in {message.body for message in shown(client, topic)})
        assert b"ours" in {message.body for message in other.checks()}
    assert set(asked) == {b"java's"}
