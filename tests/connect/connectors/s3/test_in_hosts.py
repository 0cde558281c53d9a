"""Storage's connectors in real hosts, which are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.connect.hosts import TaskChannel
from headrace.connect.worker import Exited
from tests.connect.connectors.test_in_hosts import QUEUE, SECOND, rows, task
from tests.connect.hosts.running import launcher_in, on_loop
from tests.connect.servers.s3 import S3Bucket

# A busy machine needs seconds for every host.
pytestmark = pytest.mark.timeout(300)

_ROWS = 120
_LIVES = 4


@pytest.mark.requirement(45)
def test_rows_of_a_sink_that_is_killed_in_its_flush_are_there_once(
    tmp_path: Path, bucket: S3Bucket
) -> None:
    chance = random.Random(7)
    config = {
        **bucket.config,
        "connector.class": "files-sink",
        "topics": "lines",
        "format": "jsonl",
        "file.max.rows": "2",
        "compression": "none",
        "value.converter": "json",
        "value.converter.schemas.enable": "false",
    }

    @on_loop
    async def lives() -> None:
        async with launcher_in(tmp_path) as launcher:
            end = 0
            for life in range(_LIVES):
                host, heard, channel = await task(
                    launcher, role="sink", generation=life + 1, **config
                )
                with channel:
                    kept = await asyncio.to_thread(channel.open, [QUEUE])
                    first = (kept or {}).get(QUEUE, 0)
                    # As many rows as before, or others: nobody plans the same batch again.
                    end = (
                        _ROWS if life == _LIVES - 1 else min(_ROWS, first + chance.choice([10, 30]))
                    )
                    flushing = asyncio.create_task(asyncio.to_thread(deliver, channel, first, end))
                    if life < _LIVES - 1:
                        await asyncio.sleep(chance.uniform(0, 0.3))
                        host.kill()
                        await heard.first(Exited)
                    with (
                        contextlib.suppress(Exception)
                        if life < _LIVES - 1
                        else contextlib.nullcontext()
                    ):
                        await flushing

    lives()
    lines = (bucket.get(key) for key in bucket.listed("lines"))
    found = [orjson.loads(line)["n"] for text in lines for line in text.splitlines()]
    assert sorted(found) == list(range(_ROWS))


def deliver(channel: TaskChannel, first: int, end: int) -> None:
    values = [b'{"n":%d}' % number for number in range(first, end)]
    channel.put(1, [(QUEUE, first, end)], rows(values, first))
    channel.flush(1, {QUEUE: end})


@pytest.mark.slow
@pytest.mark.requirement(45)
def test_rows_of_a_source_that_is_killed_come_once(tmp_path: Path, bucket: S3Bucket) -> None:
    for number in range(4):
        lines = "".join(f"{number * 50 + more}\n" for more in range(50))
        bucket.put(f"{number}.jsonl", lines.encode())
    config = {
        **bucket.config,
        "connector.class": "files-source",
        "topic": "lines",
        "batch.max.rows": "30",
        "value.converter": "json",
        "value.converter.schemas.enable": "false",
    }
    committed: dict[str, Any] = {}
    taken: list[int] = []

    @on_loop
    async def lives() -> None:
        async with launcher_in(tmp_path) as launcher:
            while len(taken) < 200:
                places = list(committed.values())
                host, heard, channel = await task(launcher, positions=places, **config)
                with channel:
                    for batch in (1, 2, 3):
                        given = await asyncio.to_thread(
                            channel.poll, batch, max_records=40, wait=5 * SECOND
                        )
                        if batch < 3:  # the third is lost with its host
                            taken.extend(map(int, given.rows["value"].to_pylist()))
                            for partition, offset in given.positions:
                                committed[partition["object"]] = (partition, offset)
                host.kill()
                await heard.first(Exited)

    lives()
    assert sorted(taken) == list(range(200))
