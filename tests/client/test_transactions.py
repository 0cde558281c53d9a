"""Transaction messages on both kinds of cluster: ends, checks, dead producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

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

MakeTopic = Callable[..., str]
COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN


@pytest.fixture(autouse=True)
def _not_yet(cluster: Cluster) -> None:
    if cluster.kind == "embedded":
        pytest.skip("notyet: the embedded broker has no transactions")


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
                while len((await reader.pull(queue, 0)).messages()) < 2 or b"undone" not in asked:
                    await asyncio.sleep(0.05)
                # A broker may ask again before it has seen the answer.
                counts = other.transaction_statistics()
                assert counts.checks == len(asked) >= 4
                assert counts.unknown == 1

    asyncio.run(scenario())
    until(lambda: len(shown(client, topic)) == 2)
    assert sorted(message.body for message in shown(client, topic)) == [b"done", b"twice"]
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
        until(lambda: [message.body for message in shown(client, topic)] == [b"done"])
        assert producer.transaction_statistics().rolled_back >= 1
        with pytest.raises(ConfigurationError, match="has a delay"):
            producer.begin(Message(topic=topic, delay_level=1))
