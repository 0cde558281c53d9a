"""Two clusters with the same topic, and copies of it in both directions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.broker import spawn_broker
from headrace.client import Admin, Client, Message, Producer, PullConsumer
from headrace.connect.connectors.rocketmq.sink import ORIGIN
from headrace.connect.connectors.rocketmq.source import RocketMQSourceConnector
from headrace.connect.data import DataPlane
from headrace.connect.worker import HostSpec
from tests.clusters import Cluster
from tests.connect.connectors.rocketmq.conftest import stored
from tests.connect.connectors.sources import task_configs
from tests.connect.data.planes import plane_at, until
from tests.connect.hosts.running import Heard, on_loop

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.slow]

QUEUES = 3


def spec(role: str, address: str, topic: str) -> HostSpec:
    source = role == "source"
    config = {
        "name": f"{role}-{topic}",
        "rocketmq.namesrv": address,
        "rocketmq.topics" if source else "topics": topic,
        "remote.cluster": "far",
        "local.cluster": "near",
    }
    if source:
        config |= task_configs(RocketMQSourceConnector, config)[0]
    return HostSpec(
        kind="task",
        connector=config["name"],
        task=0,
        generation=1,
        config={**config, "connector.class": f"rocketmq-{role}"},
        role="source" if source else "sink",
    )


@asynccontextmanager
async def both_ways(near: Cluster, far: str, topic: str, folder: Path) -> AsyncIterator[DataPlane]:
    """Copy a topic of the far cluster here, and what is born here back."""
    async with plane_at(near.namesrv, folder) as plane:
        coming, going = Heard(), Heard()
        await plane.launch(spec("source", far, topic), coming)
        await until(lambda: "Started" in coming.kinds())
        with Client(near.namesrv) as client:
            await arrived(client, topic, 1)
        await plane.launch(spec("sink", far, topic), going)
        await until(lambda: "Started" in going.kinds())
        yield plane


def send(client: Client, topic: str, *bodies: str) -> None:
    for body in bodies:
        Producer(client).send(Message(topic=topic, body=body.encode(), keys=body, tags="red"))


async def arrived(client: Client, topic: str, count: int) -> list[str]:
    """Wait for so many messages; give the bodies of all that there are."""
    async with asyncio.timeout(240):
        while True:
            if topic in await asyncio.to_thread(Admin(client).topics):
                queues = await asyncio.to_thread(client.queues, topic, refresh=True)
                ends = await asyncio.to_thread(PullConsumer(client).end_offsets, queues)
                if sum(ends.values()) >= count:
                    break
            await asyncio.sleep(0.1)
    found = await asyncio.to_thread(stored, client, topic, count)
    assert {one.tags for one in found} == {"red"}
    assert all(one.keys == one.body.decode() for one in found)
    return sorted(one.body.decode() for one in found)


@on_loop
async def test_a_topic_is_copied_both_ways_over_a_restart_of_the_other_broker(
    embedded: Cluster, tmp_path: Path
) -> None:
    topic = f"copied-{os.getpid()}"
    broker = spawn_broker(tmp_path / "far", port=0)
    address, port = broker.address, int(broker.address.rpartition(":")[2])
    try:
        with Client(embedded.namesrv) as near, Client(address) as far:
            Admin(far).create_topic(topic, queues=QUEUES)
            send(far, topic, "far 1")
            async with both_ways(embedded, address, topic, tmp_path):
                assert len(near.queues(topic)) == QUEUES
                send(near, topic, "near 1")
                assert await arrived(far, topic, 2) == ["far 1", "near 1"]
                broker.kill()
                send(near, topic, "near 2")
                broker = spawn_broker(tmp_path / "far", port=port)
                send(far, topic, "far 2")
                everything = ["far 1", "far 2", "near 1", "near 2"]
                assert await arrived(near, topic, 4) == everything
                assert await arrived(far, topic, 4) == everything
            origins = {
                one.body[:4].strip(): one.properties.get(ORIGIN) for one in stored(near, topic, 4)
            }
            assert origins == {b"far": "far", b"near": None}
            assert await arrived(far, topic, 4) == everything
    finally:
        broker.stop()


@pytest.mark.rocketmq
@on_loop
async def test_a_topic_of_rocketmq_is_copied_both_ways(
    embedded: Cluster, rocketmq: Cluster, tmp_path: Path
) -> None:
    topic = f"copied-{os.getpid()}-rocketmq"
    with Client(embedded.namesrv) as near, Client(rocketmq.namesrv) as far:
        Admin(far).create_topic(topic, queues=QUEUES)
        send(far, topic, *(f"far {number}" for number in range(200)))
        async with both_ways(embedded, rocketmq.namesrv, topic, tmp_path):
            send(near, topic, *(f"near {number}" for number in range(200)))
            here, there = await arrived(near, topic, 400), await arrived(far, topic, 400)
        assert here == there
        assert len(set(here)) == 400
        assert len(near.queues(topic)) == len(far.queues(topic)) == QUEUES
