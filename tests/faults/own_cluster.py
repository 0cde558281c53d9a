"""Some of our own brokers as one cluster, on which jobs take the protocol for RocketMQ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.broker.naming import announcing
from headrace.client import Admin, Client, Message, MessageQueue, Producer, PullConsumer
from tests.faults.harness import await_true

__all__ = ["align", "positions_of", "running_cluster"]

_PADDING = "padding"


@contextmanager
def running_cluster(folder: Path, count: int) -> Iterator[str]:
    """Brokers for the time of a test, ``broker-0`` and on; gives the first one, the name server."""
    # Each new topic is waited for until the name server has heard of it.
    with patch.object(announcing, "_LOOK", 0.01), ExitStack() as opened:
        address = ""
        for number in range(count):
            name = f"broker-{number}"
            settings = BrokerSettings(broker_name=name, name_servers=(address,) if address else ())
            broker = opened.enter_context(EmbeddedBroker(folder / name, settings=settings))
            address = address or broker.address
        with Client(address) as client:
            await_true("all brokers", lambda: len(client.brokers()) == count)
        yield address


def align(client: Client) -> None:
    """Bring the logs of all brokers to one length: what is sent next lies at the same positions."""
    Admin(client).create_topic(_PADDING, queues=1)
    queues = client.queues(_PADDING, for_="write")
    ends = {queue: _padded(client, queue, 1) for queue in queues}
    for queue, end in ends.items():
        _padded(client, queue, 1 + max(ends.values()) - end)
    assert len({_padded(client, queue, 1) for queue in queues}) == 1


def _padded(client: Client, queue: MessageQueue, size: int) -> int:
    """Append a message; gives its place."""
    Producer(client).send(Message(topic=queue.topic, body=b"x" * size, born=1), queue)
    return positions_of(client, queue)[-1]


def positions_of(client: Client, queue: MessageQueue) -> list[int]:
    """Read where the messages of a queue lie in its broker's log."""
    consumer = PullConsumer(client)
    blocks = consumer.blocks(queue, 0, consumer.end_offset(queue))
    return [message.position for block in blocks for message in block.messages()]
