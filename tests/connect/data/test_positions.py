"""Positions of connectors that do not run: changed, forgotten, set before the first start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Admin, Client, PullConsumer
from headrace.connect.channel import StartQuery
from headrace.connect.worker import Started
from headrace.connect.worker.reporting import OffsetEntry
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
async def test_a_source_goes_on_where_the_open_record_has_it_whatever_came_before_that(
    embedded: Cluster, tmp_path: Path
) -> None:
    topic = "told-anew"
    file = tmp_path / "in.txt"
    file.write_text("a\nb\nc\n")
    partition = {"filename": str(file)}
    async with plane_at(embedded.namesrv, tmp_path) as plane:
        ask = plane.engine.ask
        # A driver that was still there commits the first line before it is fenced; in the next
        # life all is forgotten at that moment.
        changes: list[Callable[[], Awaitable[None]]] = [
            lambda: plane.alter(f"in-{topic}", {}, [OffsetEntry(partition, {"position": 2})]),
            lambda: plane.reset(f"in-{topic}", {}),
        ]

        async def late(make: Callable[[int], Any]) -> Any:
            if make(0).__class__ is StartQuery:
                await changes.pop(0)()
            return await ask(make)

        plane.engine.ask = late  # type: ignore[method-assign]
        expected: list[bytes] = []
        with Client(embedded.namesrv) as client:
            for generation, lines in ((1, [b"b", b"c"]), (2, [b"a", b"b", b"c"])):
                heard = Heard()
                host = await plane.launch(source(tmp_path, topic, generation), heard)
                expected += lines
                await until(lambda: topic in Admin(client).topics())
                await until(partial(has, client, topic, len(expected)))
                host.ask_stop()
                await heard.end()
                assert sorted(bodies(client, topic)) == sorted(expected)


def has(client: Client, topic: str, count: int) -> bool:
    return len(bodies(client, topic)) >= count


def bodies(client: Client, topic: str) -> list[bytes]:
    consumer = PullConsumer(client)
    return [
        message.body
        for queue in client.queues(topic)
        for block in consumer.blocks(queue, 0, consumer.end_offset(queue))
        for message in block.messages()
    ]
