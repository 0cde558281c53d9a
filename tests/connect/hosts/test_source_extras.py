"""What a source says beside its records: positions, topics, work of the engine's."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from headrace.connect.hosts import TaskChannel
from headrace.connect.worker import Started
from tests.connect.hosts.running import launched, launcher_in, on_loop

SECOND = timedelta(seconds=1)
PLUGIN = """
import pyarrow as pa

from headrace.connect import SourceBatch, SourceConnector, SourceRecord, SourceTask


class SilentTask(SourceTask):
    given = False

    def start(self, config):
        pass

    def in_engine(self, config):
        return {"format": "csv"}

    def queues_of(self, topic):
        return 7

    def poll(self):
        if self.given:
            return None
        self.given = True
        nothing = pa.array([], pa.binary())
        return SourceBatch(partition={"p": 1}, offset={"o": 9}, topic="t", value=nothing)


class SilentConnector(SourceConnector):
    task = SilentTask

    def task_configs(self, max_tasks):
        return [{}]


class TalkingTask(SilentTask):
    def in_engine(self, config):
        return None

    def poll(self):
        return [SourceRecord(partition={}, offset={"o": 1}, topic="t", value="v")]


class TalkingConnector(SilentConnector):
    task = TalkingTask
"""


def plugins(folder: Path) -> dict[str, tuple[str, ...]]:
    (folder / "plugins").mkdir()
    (folder / "plugins" / "silent.py").write_text(PLUGIN)
    return {"folders": (str(folder / "plugins"),), "modules": ("silent",)}


@on_loop
async def test_a_batch_without_rows_has_its_position_committed(tmp_path: Path) -> None:
    async with launcher_in(tmp_path, **plugins(tmp_path)) as launcher:
        _, heard = await launched(launcher, connector_class="silent.SilentConnector")
        with TaskChannel((await heard.first(Started)).address) as channel:
            assert await asyncio.to_thread(channel.await_topics, 10 * SECOND) == {}
            given = await asyncio.to_thread(channel.poll, 1)
            assert given.rows.num_rows == 0
            assert given.positions == [({"p": 1}, {"o": 9})]


@on_loop
async def test_a_task_says_how_many_queues_its_topics_shall_have(tmp_path: Path) -> None:
    async with launcher_in(tmp_path, **plugins(tmp_path)) as launcher:
        _, heard = await launched(launcher, connector_class="silent.TalkingConnector")
        with TaskChannel((await heard.first(Started)).address) as channel:
            assert await asyncio.to_thread(channel.await_topics, 10 * SECOND) == {"t": 7}
            assert await asyncio.to_thread(channel.in_engine) is None


@on_loop
async def test_a_task_says_what_the_engine_does_for_it(tmp_path: Path) -> None:
    async with launcher_in(tmp_path, **plugins(tmp_path)) as launcher:
        _, heard = await launched(launcher, connector_class="silent.SilentConnector")
        with TaskChannel((await heard.first(Started)).address) as channel:
            assert await asyncio.to_thread(channel.in_engine) == {"format": "csv"}
