"""Rows of a topic to a table of PostgreSQL and back, exactly once, by a worker of Connect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, LiteralString

import numpy as np
import orjson
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.conninfo import conninfo_to_dict

from benchmarks.clusters import embedded
from benchmarks.connect_files import assert_numbers, bodies
from benchmarks.connect_worker import ConnectWorker, rate_of, running_connect, stored
from benchmarks.lines import spread
from benchmarks.measures import Plan, benchmark
from benchmarks.sizes import QUEUES, Sizes
from headrace.client import Admin, Client
from tests.connect.servers.postgres import running_postgres

__all__ = [
    "assert_changes",
    "assert_rows",
    "connect_postgres",
    "connect_postgres_source",
    "inserting",
    "number_in",
    "orders",
    "table_of_orders",
]

_TOPIC = "orders"
_CHUNK = 50_000
#: Rows of a transaction that a source is to see.
_TRANSACTION = 1_000
_INSERT = """
    INSERT INTO orders SELECT id, 'customer-' || id %% 100000, 1 + id %% 19, id %% 100000 / 100.0,
    'left at door ' || id %% 1000 FROM generate_series(%s::bigint, %s::bigint - 1) AS id
"""


@benchmark({"connect_postgres_sink": "rows/s"}, turns="postgres-sink")
def connect_postgres(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Insert JSON of five fields into a table with a primary key; one task."""
    sizes = plan.sizes
    with (
        embedded() as (address, folder),
        Client(address) as client,
        running_postgres(fsync="on") as server,
    ):
        Admin(client).create_topic(_TOPIC, queues=QUEUES)
        spread(client, _TOPIC, orders(sizes.connect_orders))
        with running_connect(address, folder / "worker", sizes.patience) as worker:
            for run in range(plan.runs):
                with server.database() as database:
                    yield {"connect_postgres_sink": _rate(worker, run, database, sizes)}


def orders(count: int) -> Iterator[pa.BinaryArray]:
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
            return number_in(
                connection,
                "SELECT sum(next_offset) FROM headrace_connect_offsets WHERE sink = %s",
                name,
            )

        with worker.connector(name, config):
            rate = rate_of(written, sizes.connect_orders, worker)
        assert_rows(connection, sizes.connect_orders)
    return rate


def number_in(connection: psycopg.Connection[Any], query: LiteralString, *values: str) -> int:
    """Give the number that a query finds; 0 where its table is not there yet."""
    try:
        found = connection.execute(query, values).fetchone()
    except psycopg.errors.UndefinedTable:
        return 0
    return int(found[0] or 0) if found else 0


def assert_rows(connection: psycopg.Connection[Any], count: int) -> None:
    """Make sure that so many orders are in their table, none of them twice."""
    found = connection.execute("SELECT count(*), count(DISTINCT id) FROM orders").fetchone()
    assert found == (count, count), f"rows and different ids: {found}"


@benchmark(
    {"connect_postgres_snapshot": "rows/s", "connect_postgres_changes": "rows/s"},
    turns="postgres-source",
)
def connect_postgres_source(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Read a table that is there, then rows that come, by the log of changes; one task."""
    sizes = plan.sizes
    with (
        embedded() as (address, folder),
        Client(address) as client,
        running_postgres(fsync="on") as server,
        running_connect(address, folder / "worker", sizes.patience) as worker,
    ):
        for run in range(plan.runs):
            with server.database() as database:
                yield _source_rates(worker, client, run, database, sizes.connect_orders)


def _source_rates(
    worker: ConnectWorker, client: Client, run: int, database: str, rows: int
) -> Mapping[str, float]:
    place, topic = conninfo_to_dict(database), f"run{run}-orders"
    table_of_orders(database, rows)
    Admin(client).create_topic(topic, queues=QUEUES)
    config = {
        "connector.class": "postgres-source",
        "mode": "logical",
        "connection.url": f"postgresql://{place['host']}:{place['port']}/{place['dbname']}",
        "connection.user": str(place["user"]),
        "tables": "orders",
        "topic.prefix": f"run{run}-",
        "output.format": "envelope",
        "slot.drop.on.stop": "true",
        "key.converter": "json",
        "key.converter.schemas.enable": "false",
        "value.converter": "json",
        "value.converter.schemas.enable": "false",
    }
    with worker.connector(f"from-postgres-{run}", config):
        snapshot = rate_of(lambda: stored(client, topic), rows, worker)
        with inserting(database, rows):
            changes = rate_of(lambda: stored(client, topic) - rows, rows, worker)
    assert_changes(bodies(client, topic), 2 * rows)
    return {"connect_postgres_snapshot": snapshot, "connect_postgres_changes": changes}


def table_of_orders(database: str, rows: int) -> None:
    """Make a table of so many orders."""
    with psycopg.connect(database) as connection:
        connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, customer text NOT NULL,"
            " pieces bigint NOT NULL, price float8 NOT NULL, note text NOT NULL)"
        )
        connection.execute(_INSERT, [0, rows])


@contextmanager
def inserting(database: str, rows: int) -> Iterator[None]:
    """Insert as many orders more, in small transactions, while the block runs."""

    def insert() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            for first in range(rows, 2 * rows, _TRANSACTION):
                connection.execute(_INSERT, [first, min(first + _TRANSACTION, 2 * rows)])

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(insert)
        yield
        done.result()


def assert_changes(envelopes: Iterable[bytes], count: int) -> None:
    """Make sure that each of so many orders was told of as new, and none of them twice."""
    ids = (orjson.loads(envelope)["after"]["id"] for envelope in envelopes)
    assert_numbers(ids, count, "orders")
