"""PostgreSQL's connectors in real hosts."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.connect.connectors.postgres import PostgresSinkConnector, PostgresSourceConnector
from headrace.connect.hosts import ProcessLauncher, TaskChannel
from headrace.connect.worker import Exited, PluginCall, Started
from tests.connect.connectors.postgres.conftest import Connection
from tests.connect.connectors.sinks import Life, record
from tests.connect.hosts.running import launched, on_loop

MODULE = PostgresSourceConnector.__module__
SOURCE = f"{MODULE}:PostgresSourceConnector"
SINK = f"{PostgresSinkConnector.__module__}:PostgresSinkConnector"
SECOND = timedelta(seconds=1)


def test_rows_of_a_killed_source_come_once(tmp_path: Path, dsn: str, db: Connection) -> None:
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    db.execute("INSERT INTO orders SELECT generate_series(0, 399)")
    committed: list[Any] = []
    taken: list[int] = []
    config = {
        "connection.url": dsn,
        "mode": "logical",
        "tables": "orders",
        "slot.name": f"slot_{dsn.rpartition('_')[2]}",
        "snapshot.mode": "never",
        "batch.max.rows": "50",
    }

    async def lives() -> None:
        async with ProcessLauncher(tmp_path / "run") as launcher:
            texts: Any = config
            connector, heard = await launched(
                launcher, name="shop", task=None, connector_class=SOURCE, **texts
            )
            await heard.first(Started)
            answer = await connector.task_configs()
            assert answer is not None
            assert answer.failure is None
            (share,) = answer.value
            texts = {**config, **share}
            for life in range(3):
                host, heard = await launched(
                    launcher, connector_class=SOURCE, positions=committed[:], **texts
                )
                with TaskChannel((await heard.first(Started)).address) as channel:
                    if life == 0:
                        change = "UPDATE orders SET id = id + 1000"
                        await asyncio.to_thread(db.execute, change)
                    for batch in count(1):  # of 50 rows, or of those that have arrived
                        given = await asyncio.to_thread(
                            channel.poll, batch, max_records=50, wait=10 * SECOND
                        )
                        keys = given.rows["key"].to_pylist()
                        assert keys
                        if len(taken) >= 100 * (life + 1):
                            break  # this one is lost with its host
                        taken.extend(orjson.loads(key)["id"] for key in keys)
                        committed[:] = given.positions or committed
                host.kill()
                await heard.first(Exited)

    asyncio.run(lives())
    # A row whose key changes is deleted under the old one, then added under the new one.
    expected = [number for row in range(400) for number in (row, row + 1000)]
    assert taken == expected[: len(taken)]
    assert len(taken) >= 300


@pytest.mark.requirement(21)
@on_loop
async def test_offsets_that_the_sink_keeps_are_set_by_a_call(tmp_path: Path, dsn: str) -> None:
    config = {"connection.url": dsn, "auto.create": "true", "name": "sink"}
    with Life(PostgresSinkConnector, config) as one:
        one.write([record(at, {"id": at}) for at in range(3)])
    where = {"rocketmq_topic": "orders", "rocketmq_broker": "broker-a", "rocketmq_queue_id": 0}
    offsets = [{"partition": where, "offset": {"rocketmq_queue_offset": 1}}]
    async with ProcessLauncher(tmp_path / "run") as launcher:
        call = PluginCall(
            what="alter_offsets",
            connector_class=SINK,
            config=config,
            arguments={"offsets": offsets},
        )
        answer = await launcher.call(call)
    assert (answer.value, answer.failure) == (True, None)
    with Life(PostgresSinkConnector, config, generation=2) as two:
        assert two.offset == 1
