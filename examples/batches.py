"""Puts each batch into a database and into Parquet files, so that a repeat changes nothing.

``python -m examples.batches`` runs in one process and fills the database; with ``--on spark`` the
same pipeline runs on Spark, on a broker that is gone afterwards, and writes the files too.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from headrace import (
    BatchRecords,
    BatchToken,
    JobSettings,
    StreamBuilder,
    Topology,
    TopologyTestDriver,
    serdes,
)
from headrace.client import Admin, Client, Message, Producer
from headrace.embedded import embedded_broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Order(TypedDict):
    """An order of one item."""

    item: str
    price: int


ORDERS = [Order(item=item, price=price) for item, price in [("tea", 3), ("jam", 5), ("tea", 4)]]


def store(database: Path, records: BatchRecords[str, int], token: BatchToken) -> None:
    """Keep the counts of a batch together with its token, in one transaction of the database."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("create table if not exists done (batch integer primary key)")
        connection.execute("create table if not exists counts (item text primary key, n integer)")
        if connection.execute("select 1 from done where batch = ?", [token.batch]).fetchone():
            return
        connection.execute("insert into done values (?)", [token.batch])
        rows = [(record.key, record.value) for record in records]
        connection.executemany("insert or replace into counts values (?, ?)", rows)


def write(folder: Path, frame: DataFrame, token: BatchToken) -> None:
    """Write a batch to a folder of its own: a repeat overwrites it with the same rows."""
    rows = frame.select("value.*", "time")
    rows.write.mode("overwrite").parquet(str(folder / f"batch={token.batch}"))


def build(folder: Path) -> Topology:
    """Make the pipeline; everything that it writes is below a folder."""
    builder = StreamBuilder("example-batches")
    orders = builder.source("orders", Order)
    orders.sink_dataframe(partial(write, folder / "orders"), name="files")
    counts = orders.key_by(lambda order: order["item"]).count().to_stream()
    counts.for_each_batch(partial(store, folder / "counts.db"), name="database")
    return builder.build()


def run_here(folder: Path) -> None:
    """Run in this process."""
    with TopologyTestDriver(build(folder)) as driver:
        driver.input("orders", serdes.json).pipe(ORDERS)


def run_on_spark(folder: Path) -> None:
    """Run on Spark, and show what the files hold."""
    from pyspark.sql import SparkSession

    from headrace import StreamJob

    with embedded_broker(folder / "broker") as address, Client(address) as client:
        Admin(client).create_topic("orders", queues=2)
        for order in ORDERS:
            Producer(client).send(Message(topic="orders", body=serdes.json.serialize(order)))
        settings = JobSettings(namesrv=address, data_dir=folder, partitions=2, master="local[2]")
        with StreamJob(build(folder), settings).start() as job:
            job.await_caught_up()
            job.await_batches()
    found = SparkSession.builder.getOrCreate().read.parquet(str(folder / "orders"))
    for row in sorted((row["item"], row["price"]) for row in found.collect()):
        print("order", *row)


def show(folder: Path) -> None:
    """Print what is in the database."""
    with closing(sqlite3.connect(folder / "counts.db")) as connection:
        for item, count in connection.execute("select item, n from counts order by item"):
            print(f"{item}: {count}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-example-") as name:
        run = run_on_spark if sys.argv[1:] == ["--on", "spark"] else run_here
        run(Path(name))
        show(Path(name))
