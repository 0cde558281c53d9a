"""Positions of connectors that do not run: changed, forgotten, set before the first start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Admin, Client, PullConsumer
from headrace.connect.data.orders import Start
from headrace.connect.worker import Started
from headrace.connect.worker.answers import OffsetEntry
from tests.clusters import Cluster
from tests.connect.data.planes import plane_at, source, until
from tests.connect.hosts.running import Heard, on_loop

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

#: RocketMQ's brokers keep a lock for 60 s that nobody gives back.
LEASE = 60.0


@on_loop
async def test_positions_are_changed_and_set_and_tasks_restarted_without_waiting_for_a_lease(
    cluster: Cluster, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = make_topic()
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    async with plane_at(cluster.namesrv, tmp_path) as plane:

        async def read_all(generation: int) -> OffsetEntry:
            """Run the task until it has come to the end of the file, and stop it."""
            heard = Heard()
            host = await plane.launch(source(tmp_path, topic, generation), heard)
            await until(lambda: any(isinstance(one, Started) for one in heard.events))
            async with asyncio.timeout(120):
                while True:
                    found = await plane.read(f"in-{topic}", {})
                    if found and found[0].offset and found[0].offset["position"] == 6:
                        break
                    await asyncio.sleep(0.1)
            host.ask_stop()
            await heard.end()
            return found[0]

        entry = await read_all(1)
        changed = OffsetEntry(entry.partition, {"position": 2})
        began = time.monotonic()
        await plane.alter(f"in-{topic}", {}, [changed])
        assert await plane.read(f"in-{topic}", {}) == [changed]
        await read_all(2)
        await plane.alter(f"in-{topic}", {}, [changed])
        await plane.reset(f"in-{topic}", {})
        assert await plane.read(f"in-{topic}", {}) == []
        await read_all(3)
        # Five drivers came after one another, and four of them would have waited for a lease.
        assert time.monotonic() - began < 2 * LEASE

        # Of a sink that has never run there is nothing to forget, and something to set.
        queue = {"rocketmq_topic": topic, "rocketmq_broker": "b", "rocketmq_queue_id": 0}
        entry = OffsetEntry(queue, {"rocketmq_queue_offset": 7})
        await plane.reset(f"out-{topic}", {})
        assert await plane.read(f"out-{topic}", {}) == []
        await plane.alter(f"out-{topic}", {}, [entry])
        assert await plane.read(f"out-{topic}", {}) == [entry]


@pytest.mark.slow
@on_loop
async def test_what_is_committed_after_a_source_was_told_its_positions_does_not_come_again(
    embedded: Cluster, tmp_path: Path
) -> None:
    topic = "told-anew"
    file = tmp_path / "in.txt"
    file.write_text("a\nb\nc\n")
    async with plane_at(embedded.namesrv, tmp_path) as plane:
        ask = plane.engine.ask

        async def late(make: Callable[[int], Any]) -> Any:
            if make(0).__class__ is Start:
                # A driver that was still there commits the first line, before it is fenced.
                entry = OffsetEntry({"filename": str(file)}, {"position": 2})
                await plane.alter(f"in-{topic}", {}, [entry])
            return await ask(make)

        plane.engine.ask = late  # type: ignore[method-assign]
        heard = Heard()
        host = await plane.launch(source(tmp_path, topic, 1), heard)
        with Client(embedded.namesrv) as client:
            await until(lambda: topic in Admin(client).topics())
            await until(lambda: len(bodies(client, topic)) >= 2)
            host.ask_stop()
            await heard.end()
            assert sorted(bodies(client, topic)) == [b"b", b"c"]


def bodies(client: Client, topic: str) -> list[bytes]:
    consumer = PullConsumer(client)
    return [
        message.body
        for queue in client.queues(topic)
        for block in consumer.blocks(queue, 0, consumer.end_offset(queue))
        for message in block.messages()
    ]
