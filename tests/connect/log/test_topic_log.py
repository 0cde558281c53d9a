"""The log in a topic: one order for all workers, and sums that replace what they sum up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from headrace.broker import BrokerSettings, EmbeddedBroker
from headrace.client import Admin, AsyncClient, Client
from headrace.connect.lifecycle import Phase
from headrace.connect.log import (
    LARGEST_RECORD,
    Applied,
    AssignmentMade,
    ClusterView,
    ConnectorDeleted,
    Outcome,
    Purged,
    Rejected,
    TasksPut,
    fold,
)
from headrace.connect.log.topic import TopicLog
from headrace.errors import ConnectError, HeadraceError, MessageTooLargeError
from headrace.leases import boot_time
from headrace.store.compaction import CompactionSettings
from tests.clusters import Cluster
from tests.connect.log.samples import put, status

COMPACTED = {"cleanup.policy": "COMPACTION"}
WAIT = timedelta(seconds=1)
Test = Callable[[AsyncClient], Awaitable[None]]


def run(namesrv: str, test: Test) -> None:
    async def body() -> None:
        async with AsyncClient(namesrv) as client:
            await asyncio.wait_for(test(client), 90)

    asyncio.run(body())


async def summed(log: TopicLog) -> tuple[ClusterView, dict[int, Outcome]]:
    view, outcomes = ClusterView(), {}
    async for position, record in log.read():
        view, outcomes[position] = fold(view, record, position)
    return view, outcomes


async def opened(client: AsyncClient, topic: str) -> TopicLog:
    return await TopicLog.open(client, topic, wait=WAIT)


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    return make_topic(queues=1, attributes=COMPACTED)


def test_a_record_has_been_read_back_when_append_returns(cluster: Cluster, topic: str) -> None:
    async def test(client: AsyncClient) -> None:
        log = await opened(client, topic)
        for number in range(5):
            position = await log.append(put("a b/ö", x=str(number)))
            view, _ = await summed(log)
            assert view.position == position
            assert view.connectors()["a b/ö"].config == {"x": str(number)}
        await log.close()

    run(cluster.namesrv, test)


@pytest.mark.requirement(4)
def test_workers_that_write_at_once_see_one_order_and_one_winner(
    cluster: Cluster, topic: str
) -> None:
    async def test(client: AsyncClient) -> None:
        logs = [await opened(client, topic) for _ in range(3)]
        positions = await asyncio.gather(
            *(
                log.append(put(f"c{number}", f"{mine}-{number}", expected=0, x=str(mine)))
                for number in range(10)
                for mine, log in enumerate(logs)
            )
        )
        assert len(set(positions)) == 30
        # Whoever writes last waits for its own record, and so has read all others.
        await asyncio.gather(*(log.append(put("last")) for log in logs))
        last = max([await log.append(put("last")) for log in logs])
        for log in logs:
            async for position, _ in log.follow():
                if position == last:
                    break
        views = [await summed(log) for log in logs]
        assert views[0] == views[1] == views[2]
        won = [one for one in views[0][1].values() if isinstance(one, Applied)]
        lost = [one for one in views[0][1].values() if isinstance(one, Rejected)]
        assert (len(won), len(lost)) == (16, 20)
        for log in logs:
            await log.close()

    run(cluster.namesrv, test)


def test_a_fresh_reader_sees_what_the_others_see_before_and_after_a_compaction(
    cluster: Cluster, topic: str
) -> None:
    async def test(client: AsyncClient) -> None:
        log = await opened(client, topic)
        for number in range(20):
            await log.append(put("ab"[number % 2], f"r{number}", x=str(number)))
        await log.append(TasksPut(name="a", config_version=10, configs=[{}]))
        await log.append(status("a", None, 18, Phase.RUNNING))
        await log.append(ConnectorDeleted(request="d", name="b"))
        await log.append(AssignmentMade(generation=1, log_position=0, connectors={"a": "w1"}))
        view, _ = await summed(log)
        assert await log.compact(view)
        other = await opened(client, topic)
        found, _ = await summed(other)
        assert (found.entries, found.assignment, found.recent) == (
            view.entries,
            view.assignment,
            view.recent,
        )
        assert other.statistics().records == len(view.kept())
        assert await other.append(put("c")) > view.position
        # The request that made it is known still.
        again, outcomes = await summed(other)
        position = await other.append(put("a", "r0"))
        again, outcomes = await summed(other)
        assert isinstance(outcomes[position], Rejected)
        assert set(again.connectors()) == {"a", "c"}
        await log.close()
        await other.close()

    run(cluster.namesrv, test)


def test_a_compaction_that_others_write_into_gives_up(cluster: Cluster, topic: str) -> None:
    async def test(client: AsyncClient) -> None:
        log, other = await opened(client, topic), await opened(client, topic)
        for number in range(30):
            await log.append(put(f"c{number}"))
        view, _ = await summed(log)
        busy = asyncio.create_task(_write(other, 10))
        compacted = await log.compact(view)
        await busy
        await log.append(put("end"))
        fresh = await opened(client, topic)
        mine, _ = await summed(log)
        found, _ = await summed(fresh)
        assert found.entries == mine.entries
        assert set(found.connectors()) == {f"c{number}" for number in range(30)} | {"x", "end"}
        if not compacted:
            assert not await log.compact(view)
        for one in (log, other, fresh):
            await one.close()

    async def _write(log: TopicLog, count: int) -> None:
        for _ in range(count):
            await log.append(put("x"))

    run(cluster.namesrv, test)


@pytest.mark.defect(10)
def test_a_log_survives_the_compaction_of_its_topic(tmp_path: Path) -> None:
    compaction = CompactionSettings(
        file_size=8 << 10, dirty_ratio=0.01, tombstone_retention=timedelta(0)
    )
    chance = random.Random(7)

    async def test(client: AsyncClient) -> None:
        log = await opened(client, "connect")
        bystander = await opened(client, "connect")
        for round_ in range(12):
            for number in range(60):
                name = chance.choice("abcd")
                if number % 13 == 5:
                    await log.append(ConnectorDeleted(request=f"{round_}d{number}", name=name))
                else:
                    expected = chance.choice([None, 0])
                    await log.append(
                        put(name, f"{round_}-{number}", expected=expected, y="z" * 200)
                    )
            await log.append(Purged(names=["c"]))
            view, _ = await summed(log)
            assert await log.compact(view)
            fresh = await opened(client, "connect")
            found, _ = await summed(fresh)
            assert (found.entries, found.recent) == (view.entries, view.recent)
            await fresh.close()
        await log.append(put("end"))
        async for _, record in bystander.follow():
            if getattr(record, "name", "") == "end":
                break
        seen, _ = await summed(bystander)
        mine, _ = await summed(log)
        assert seen.entries == mine.entries
        await log.close()
        await bystander.close()

    with EmbeddedBroker(tmp_path, settings=BrokerSettings(compaction=compaction)) as broker:
        run(broker.address, test)
        with Client(broker.address) as client:
            config = Admin(client).topic_config("connect")
            assert {one.attributes["cleanup.policy"] for one in config.values()} == {"COMPACTION"}


def test_a_record_above_the_limit_is_refused(cluster: Cluster, topic: str) -> None:
    async def test(client: AsyncClient) -> None:
        log = await opened(client, topic)
        with pytest.raises(MessageTooLargeError):
            await log.append(put("a", x="y" * LARGEST_RECORD))
        await log.close()

    run(cluster.namesrv, test)


@pytest.mark.parametrize(
    ("queues", "attributes", "text"),
    [(1, None, "no compaction topic"), (2, COMPACTED, "has 2 queues")],
)
def test_a_topic_that_cannot_hold_a_log_is_refused(
    queues: int,
    attributes: dict[str, str] | None,
    text: str,
    embedded: Cluster,
) -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(ConnectError, match=text):
            await opened(client, name)

    name = f"no-log-{queues}"
    with Client(embedded.namesrv) as client:
        Admin(client).create_topic(name, queues=queues, attributes=attributes)
    run(embedded.namesrv, test)


def test_a_log_whose_topic_was_made_anew_is_read_no_more(embedded: Cluster) -> None:
    async def test(client: AsyncClient) -> None:
        from headrace.client import AsyncAdmin

        log = await TopicLog.open(client, "remade", wait=timedelta(milliseconds=100))
        for number in range(5):
            await log.append(put(str(number)))
        admin, may_pull, pull = AsyncAdmin(client), asyncio.Event(), log._puller.pull

        async def pull_later(*given: Any, **more: Any) -> Any:
            await may_pull.wait()
            return await pull(*given, **more)

        # Between the two there is no topic, which is another error.
        with patch.object(log._puller, "pull", pull_later):
            await asyncio.sleep(0.2)
            await admin.delete_topic("remade")
            await admin.create_topic("remade", 1, attributes=COMPACTED)
            may_pull.set()
            await asyncio.sleep(0)
        while log.failure is None:
            await asyncio.sleep(0.05)
        assert "made anew" in str(log.failure)
        with pytest.raises(HeadraceError):
            await log.append(put("x"))
        await log.close()

    run(embedded.namesrv, test)


def silent_for(log: TopicLog) -> float:
    return boot_time() - log.heard_at()


def test_a_log_knows_for_how_long_it_has_heard_nothing(tmp_path: Path) -> None:
    async def test(client: AsyncClient) -> None:
        log = await TopicLog.open(client, "connect", wait=timedelta(milliseconds=100))
        await log.append(put("a"))
        assert silent_for(log) < 5
        await asyncio.to_thread(broker.stop)
        before = silent_for(log)
        while silent_for(log) < before + 0.5:
            await asyncio.sleep(0.05)
        await log.close()

    broker = EmbeddedBroker(tmp_path)
    broker.start()
    try:
        run(broker.address, test)
    finally:
        broker.stop()


def test_a_log_that_is_read_in_part_counts_as_read_only_at_its_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(client: AsyncClient) -> None:
        topic = f"connect-parts-{time.time_ns()}"
        behind = await TopicLog.open(client, topic)
        await behind.close()  # it reads by hand from here on
        other = await TopicLog.open(client, topic)
        for number in range(3):
            await other.append(put(str(number)))
        await other.close()
        (queue,) = await client.queues(topic)
        monkeypatch.setattr("headrace.connect.log.topic._PULL_MESSAGES", 1)
        silent = silent_for(behind)
        heard = []
        while await behind.end() < 3:
            await behind._advance(queue, timedelta(milliseconds=100))
            heard.append(silent_for(behind) < silent)
        assert heard == [False, False, True]

    run(cluster.namesrv, test)


@pytest.mark.slow
def test_a_log_in_which_nothing_happens_is_known_to_be_read_though_pulls_are_held_back(
    cluster: Cluster,
) -> None:
    async def test(client: AsyncClient) -> None:
        topic = f"connect-idle-{time.time_ns()}"
        log = await TopicLog.open(client, topic, wait=timedelta(milliseconds=300))
        await log.append(put("a"))
        longest = 0.0
        for _ in range(70):
            await asyncio.sleep(0.1)
            longest = max(longest, silent_for(log))
        assert longest < 4  # RocketMQ looks at the pulls that it holds every five seconds
        await log.close()

    run(cluster.namesrv, test)
