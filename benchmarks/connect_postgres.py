"""Rows of a topic to a table of PostgreSQL, exactly once, by a worker of Connect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.conninfo import conninfo_to_dict

from benchmarks.clusters import embedded
from benchmarks.connect_worker import ConnectWorker, rate_of, running_connect
from benchmarks.lines import spread
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, Sizes
from headrace.client import Admin, Client
from tests.connect.servers.postgres import running_postgres

__all__ = ["connect_postgres"]

_TOPIC = "orders"
_CHUNK = 50_000


@benchmark({"connect_postgres_sink": "rows/s"})
def connect_postgres(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Insert JSON of five fields into a table with a primary key; one task."""
    sizes = plan.sizes
    with (
        embedded() as (address, folder),
        Client(address) as client,
        running_postgres(fsync="on") as server,
    ):
        Admin(client).create_topic(_TOPIC, queues=QUEUES)
        spread(client, _TOPIC, _orders(sizes.connect_orders))
        with running_connect(address, folder / "worker", sizes.patience) as worker:
            for run in range(plan.runs):
                with server.database() as database:
                    yield {"connect_postgres_sink": _rate(worker, run, database, sizes)}


def _orders(count: int) -> Iterator[pa.BinaryArray]:
    """Make objects of JSON, each with an ``id`` of its own."""
    random = np.random.default_rng(42)
    for first in range(0, count, _CHUNK):
        ids = np.arange(first, min(first + _CHUNK, count))
        cents = random.integers(100, 100_000, len(ids))
        fields = {
            '{"id":': ids,
            ',"customer":"customer-': random.integers(0, 100_000, len(ids)),
            '","pieces":': random.integers(1, 20, len(ids)),
            ',"price":': cents / 100,
            ',"note":"left at door ': random.integers(0, 1_000, len(ids)),
        }
        parts: list[Any] = []
        for name, column in fields.items():
            parts += [name, pa.array(column).cast(pa.string())]
        yield pc.binary_join_element_wise(*parts, '"}', "").cast(pa.binary())


def _rate(worker: ConnectWorker, run: int, database: str, sizes: Sizes) -> float:
    name = f"to-postgres-{run}"
    place = conninfo_to_dict(database)
    config = {
        "connector.class": "postgres-sink",
        "topics": _TOPIC,
        "connection.url": f"postgresql://{place['host']}:{place['port']}/{place['dbname']}",
        "connection.user": str(place["user"]),
        "value.converter": "json",
        "value.converter.schemas.enable": "false",
        "insert.mode": "insert",
        "pk.mode": "record_value",
        "pk.fields": "id",
        "auto.create": "true",
    }
    with psycopg.connect(database, autocommit=True) as connection:

        def written() -> int:
            """What the sink says in the transactions of its rows; counting those takes long."""
            try:
                found = connection.execute(
                    "SELECT sum(next_offset) FROM headrace_connect_offsets WHERE sink = %s", [name]
                ).fetchone()
            except psycopg.errors.UndefinedTable:
                return 0
            return int(found[0] or 0) if found else 0

        with worker.connector(name, config):
            rate = rate_of(written, sizes.connect_orders, worker)
        found = connection.execute(f"SELECT count(*), count(DISTINCT id) FROM {_TOPIC}").fetchone()
    assert found == (sizes.connect_orders,) * 2, f"rows and different ids: {found}"
    return rate
