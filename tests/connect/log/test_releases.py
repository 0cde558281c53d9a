"""Logs that another release has written: an older one's is read, a newer one's is refused in words."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from headrace.client import AsyncAdmin, AsyncClient, AsyncProducer, Message
from headrace.connect.log import CompactedRecord, Record
from headrace.connect.log.protocol import decoded, encoded
from headrace.connect.running import joined_cluster, running_worker
from headrace.connect.worker import Connect
from headrace.errors import CorruptLogError, WorkerStoppingError
from tests.clusters import Cluster
from tests.connect.fakes.launcher import FakeLauncher
from tests.connect.fakes.plugins import CHAOS, config_of
from tests.connect.running import OwnLog, make_worker, quick_settings
from tests.connect.waiting import eventually, until_running

#: A line for each kind of record, in which each part is there once at least.  Lines stay as they
#: are: later releases read what is in somebody's log.
WRITTEN = Path(__file__).with_name("written.jsonl").read_bytes().splitlines()
#: What it does not know: a kind, a word, a part of each kind of record, and of what is in them.
NEWER = (
    b'{"kind":"from-the-future","name":"a"}',
    b'{"kind":"target-set","request":"","name":"a","target":"DREAMING"}',
    *(line.replace(b"{", b'{"soon":true,', 1) for line in WRITTEN),
    *(
        line.replace(place, place + b'"soon":true,')
        for line in WRITTEN
        for place in (b'"entry":{', b'"tasks":[{', b'"leftovers":[{', b'"story":{', b'"current":{')
        if place in line
    ),
    *(line.replace(b'"KILL",6', b'"KILL",6,7') for line in WRITTEN if b'"KILL",6' in line),
)
REFUSED = "none that this release of Headrace knows"


def parts(value: Any) -> Iterator[msgspec.Struct]:
    """Give all structures in a value."""
    if isinstance(value, msgspec.Struct):
        yield value
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        value = tuple(value.values())
    for one in value if isinstance(value, (list, tuple)) else ():
        yield from parts(one)


def test_what_earlier_releases_have_written_is_read() -> None:
    """One that fails tells of a change that ends workers of earlier releases.

    See docs/guides/connect/overview.md.
    A kind or a part that is new gets a line here, and a word in the changelog.
    """
    told: dict[type, set[str]] = defaultdict(set)
    for line in WRITTEN:
        record = decoded(line, 0)
        assert encoded(record) == line
        for one in parts(record):
            told[type(one)] |= {
                field.name
                for field in msgspec.structs.fields(one)
                if getattr(one, field.name) != field.default
            }
    assert told.keys() >= {*get_args(Record), CompactedRecord}
    for kind, names in told.items():
        assert names == {field.name for field in msgspec.structs.fields(kind)}, kind


def test_what_a_newer_release_has_written_is_refused_and_not_skipped() -> None:
    taken = []
    for line in NEWER:
        try:
            taken.append(decoded(line, 7))
        except CorruptLogError as error:
            assert f"position 7 of the log of Connect is {REFUSED}: " in str(error)  # noqa: PT017
            assert "start this worker by that release" in str(error)  # noqa: PT017
    assert taken == []


def test_what_is_no_record_at_all_is_damage() -> None:
    with pytest.raises(CorruptLogError, match=r"position 7 .* is damaged"):
        decoded(b'{"kind":"tasks-', 7)


def test_a_worker_whose_log_goes_on_in_words_that_it_does_not_know_stops_all_that_it_runs() -> None:
    async def scenario() -> None:
        log, launcher = OwnLog(), FakeLauncher()
        worker = make_worker(log, launcher)
        connect = Connect(worker)
        await worker.start()
        await connect.create("a", config_of(CHAOS))
        await until_running(connect, "a")
        try:
            decoded(NEWER[0], 7)
        except CorruptLogError as error:
            log.fail(error)
        await eventually(lambda: REFUSED in connect.health().message)
        with pytest.raises(WorkerStoppingError, match="has lost its log"):
            await connect.create("b", config_of(CHAOS))
        # Nobody can be told how its copies ended: it does not wait for that.
        await asyncio.wait_for(worker.stop(), 2)
        assert not any(host.alive() for host in launcher.hosts)
        assert all("stop" in host.story for host in launcher.hosts)
        await launcher.close()

    asyncio.run(scenario())


def test_a_worker_of_a_group_ends_in_words_and_leaves_it_to_newer_ones(
    embedded: Cluster, tmp_path: Path
) -> None:
    async def scenario() -> None:
        group, launcher = f"releases-{os.getpid()}", FakeLauncher()
        settings = quick_settings(group=group, data=tmp_path)
        async with AsyncClient(embedded.namesrv) as client:

            async def work() -> None:
                async with (
                    joined_cluster(client, settings) as cluster,
                    running_worker(settings, launcher, cluster) as running,
                ):
                    await running.connect.create("a", config_of(CHAOS))
                    await until_running(running.connect, "a")
                    newer = Message(topic=f"{group}-log", body=NEWER[0], keys="newer")
                    await AsyncProducer(client).send(newer)
                    await asyncio.wait_for(running.until_asked(), 20)

            with pytest.raises(CorruptLogError, match=REFUSED):
                await work()
            assert not any(host.alive() for host in launcher.hosts)
            assert await AsyncAdmin(client).group_members(group) == []
            # It is not let in again.
            with pytest.raises(CorruptLogError, match=REFUSED):
                await joined_cluster(client, settings).__aenter__()
            assert await AsyncAdmin(client).group_members(group) == []

    asyncio.run(scenario())
