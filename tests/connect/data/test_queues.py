"""Which queues a sink reads, and from where: also those that come while it runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.client import Admin, Client, Message, MessageQueue, Producer
from headrace.connect.data import DataPlane
from headrace.connect.worker import Started
from tests.clusters import Cluster
from tests.connect.data.planes import lines_of, plane_at, task, until, waits_for
from tests.connect.hosts.running import SINK, Heard, on_loop

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.slow]


class Sinks:
    """Sinks that write down what they get, and which calls they get."""

    def __init__(self, plane: DataPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        self.heard: dict[str, Heard] = {}

    async def start(self, name: str, **config: str) -> None:
        heard = self.heard[name] = Heard()
        seen, trace = self._folder / f"{name}.seen", self._folder / f"{name}.trace"
        config |= {"connector_class": SINK, "seen": str(seen), "trace": str(trace)}
        await self._plane.launch(task(name, "sink", **config), heard)
        await until(lambda: any(isinstance(event, Started) for event in heard.events))

    def seen(self, name: str) -> list[str]:
        return sorted(lines_of(self._folder / f"{name}.seen"))

    def opens(self, name: str) -> int:
        calls = lines_of(self._folder / f"{name}.trace")
        return sum(call.split()[0] == "open" for call in calls)


def send(client: Client, topic: str, *bodies: str, queue: int = 0) -> None:
    (broker,) = {one.broker for one in client.queues(topic)}
    for body in bodies:
        message = Message(topic=topic, body=body.encode())
        Producer(client).send(message, MessageQueue(topic, broker, queue))


@on_loop
async def test_sink_waits_for_its_topics_and_opens_queues_as_they_come(
    cluster: Cluster, make_topic: Callable[..., str], client: Client, tmp_path: Path
) -> None:
    there = make_topic()
    late, later, other = (f"{there}-{name}" for name in ("late", "later", "other"))
    async with plane_at(cluster.namesrv, tmp_path) as plane:
        sinks = Sinks(plane, tmp_path)
        await sinks.start(f"named-{there}", topics=f"{there},{late},{later}")
        await sinks.start(f"matching-{there}", topics_regex=f"{there}-.*")
        named, matching = sinks.heard.values()
        of_names, of_pattern = sinks.heard
        assert waits_for(named) == f"topics {late} and {later}, which do not exist yet"
        assert waits_for(matching).startswith("a topic whose name matches")

        send(client, there, "1")
        await until(lambda: sinks.seen(of_names) == ["1"])
        Admin(client).create_topic(late, queues=1)
        send(client, late, "2")
        await until(lambda: sinks.seen(of_names) == ["1", "2"])
        await until(lambda: sinks.seen(of_pattern) == ["2"])
        assert waits_for(named) == f"topic {later}, which does not exist yet"
        assert waits_for(matching) == ""

        Admin(client).create_topic(later, queues=1)
        Admin(client).create_topic(other, queues=1)
        Admin(client).create_topic(late, queues=3)
        send(client, later, "3")
        send(client, other, "4")
        send(client, late, "5", queue=2)
        await until(lambda: sinks.seen(of_names) == ["1", "2", "3", "5"])
        await until(lambda: sinks.seen(of_pattern) == ["2", "3", "4", "5"])
        assert waits_for(named) == ""
        # Nothing was read of a queue that the task had not opened.
        assert sinks.opens(of_names) >= 3
        assert sinks.opens(of_pattern) >= 3


@on_loop
async def test_new_sink_begins_where_its_config_says(
    cluster: Cluster, make_topic: Callable[..., str], client: Client, tmp_path: Path
) -> None:
    topic = make_topic(queues=1)
    send(client, topic, "old")
    await until(lambda: client_end(client, topic) == 1)
    between = datetime.now(UTC).isoformat(timespec="milliseconds")
    send(client, topic, "new")
    await until(lambda: client_end(client, topic) == 2)
    async with plane_at(cluster.namesrv, tmp_path) as plane:
        sinks = Sinks(plane, tmp_path)
        for where in ("first", "latest", between):
            name = f"{where[:6]}-{topic}"
            await sinks.start(name, topics=topic, consume_from_where=where)
        first, latest, later = sinks.heard
        # The latest is that of the moment at which a sink has opened its queues.
        await until(lambda: sinks.seen(later) == ["new"])
        await until(lambda: len(sinks.seen(first)) == 2)
        await until(lambda: sinks.opens(latest) > 0)
        send(client, topic, "newest")
        await until(lambda: len(sinks.seen(first)) == 3)
        await until(lambda: sinks.seen(latest) == ["newest"])
        await until(lambda: sinks.seen(later) == ["new", "newest"])


def client_end(client: Client, topic: str) -> int:
    """One past the last message that readers see."""
    from headrace.client import PullConsumer

    return sum(PullConsumer(client).end_offsets(client.queues(topic)).values())
