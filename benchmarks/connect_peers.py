"""Kafka Connect with its own connectors and those of others, on a real Kafka: what ours stand beside."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.conninfo import conninfo_to_dict

from benchmarks.connect_files import assert_all_once, numbered_lines, write_lines, written
from benchmarks.connect_kafka import BROKER_JAVA, COLLECTOR, committed, fill, visible
from benchmarks.connect_postgres import (
    assert_changes,
    assert_rows,
    inserting,
    number_in,
    orders,
    table_of_orders,
)
from benchmarks.connect_worker import ConnectRest, rate_of
from benchmarks.measures import Plan, UnavailableError, benchmark
from benchmarks.sizes import QUEUES, Sizes
from tests.connect.servers.kafka import KafkaServer, running_kafka
from tests.connect.servers.kafka_connect import running_kafka_connect
from tests.connect.servers.postgres import running_postgres

__all__ = [
    "debezium_sink",
    "debezium_source",
    "kafka_connect_files",
    "kafka_connect_mirror",
]

#: What Kafka's own scripts give to Connect.
_CONNECT_JAVA = f"-Xmx2G -Xms256M {COLLECTOR}"
_FILE = "org.apache.kafka.connect.file.FileStream"
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
#: By default each poll of a source is a transaction; ours takes what a second gives.
_BOUNDARY = {"transaction.boundary": "interval", "transaction.boundary.interval.ms": "1000"}
#: Nobody waits longer for any step of a peer.
_LIMIT = timedelta(minutes=5)
#: Sinks that need a table's columns take them from each value.
_SCHEMA = (
    '{"schema":{"type":"struct","optional":false,"fields":['
    '{"field":"id","type":"int64","optional":false},'
    '{"field":"customer","type":"string","optional":false},'
    '{"field":"pieces","type":"int64","optional":false},'
    '{"field":"price","type":"double","optional":false},'
    '{"field":"note","type":"string","optional":false}]},"payload":'
)


@dataclass(frozen=True, slots=True)
class _Peer:
    """Kafka Connect, and the Kafka that it stands on."""

    worker: ConnectRest
    kafka: KafkaServer
    folder: Path

    def source_rate(self, config: Mapping[str, str], topic: str, count: int) -> float:
        """Run a source until a topic shows all of so many lines; lines per second."""
        with visible(self.kafka, topic) as shown, self.worker.connector(f"to-{topic}", config):
            rate = rate_of(shown, count, self.worker)
            assert_all_once(committed(self.kafka, topic), count)
        return rate

    def filled(self, columns: Iterable[pa.BinaryArray]) -> str:
        """Make a topic of these records."""
        topic = self.kafka.create_topic(QUEUES)
        fill(self.kafka, topic, columns)
        return topic


@contextmanager
def _running(sizes: Sizes, *plugins: str, **settings: str) -> Iterator[_Peer]:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise UnavailableError(f"{tool} is not installed, which Kafka Connect needs")
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        running_kafka(BROKER_JAVA) as kafka,
        running_kafka_connect(kafka, _CONNECT_JAVA, plugins, **settings) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        yield _Peer(ConnectRest(http, min(sizes.patience, _LIMIT)), kafka, Path(folder))


@benchmark(
    {"kafka_connect_file_source": "rows/s", "kafka_connect_file_sink": "rows/s"}, turns="files"
)
def kafka_connect_files(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Move the lines of ``connect_file_source``, exactly once into the topic; one task each."""
    sizes = plan.sizes
    with _running(sizes) as peer:
        lines = peer.folder / "lines.txt"
        write_lines(lines, sizes)
        for _ in range(plan.runs):
            topic = peer.kafka.create_topic(QUEUES)
            yield {
                "kafka_connect_file_source": _file_source_rate(peer, lines, topic, sizes),
                "kafka_connect_file_sink": _file_sink_rate(peer, topic, lines, sizes),
            }


def _file_source_rate(peer: _Peer, lines: Path, topic: str, sizes: Sizes) -> float:
    config = {
        "connector.class": f"{_FILE}SourceConnector",
        "file": str(lines),
        "topic": topic,
        **_BOUNDARY,
    }
    return peer.source_rate(config, topic, sizes.connect_lines)


def _file_sink_rate(peer: _Peer, topic: str, lines: Path, sizes: Sizes) -> float:
    copy = lines.with_name(topic)
    config = {"connector.class": f"{_FILE}SinkConnector", "file": str(copy), "topics": topic}
    with peer.worker.connector(f"to-file-{topic}", config):
        return written(copy, lines, peer.worker, sizes)


@benchmark({"kafka_connect_mirror": "rows/s"}, peers=True, turns="kafka")
def kafka_connect_mirror(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Copy the lines of ``connect_kafka_source`` from topic to topic by MirrorMaker, exactly once."""
    sizes = plan.sizes
    with _running(sizes, "mirror") as peer:
        for _ in range(plan.runs):
            topic = peer.filled(numbered_lines(sizes))
            copy = f"source.{topic}"
            peer.kafka.create(copy, QUEUES)
            config = {
                "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
                "source.cluster.alias": "source",
                "target.cluster.alias": "target",
                "source.cluster.bootstrap.servers": peer.kafka.address,
                "target.cluster.bootstrap.servers": peer.kafka.address,
                "topics": topic,
                "replication.factor": "1",
                "offset-syncs.topic.replication.factor": "1",
                "emit.heartbeats.enabled": "false",
                "sync.topic.acls.enabled": "false",
                "sync.topic.configs.enabled": "false",
                "key.converter": _BYTES,
                "value.converter": _BYTES,
                **_BOUNDARY,
            }
            yield {"kafka_connect_mirror": peer.source_rate(config, copy, sizes.connect_lines)}


@benchmark({"debezium_jdbc_sink": "rows/s"}, peers=True, turns="postgres-sink")
def debezium_sink(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Insert the orders of ``connect_postgres_sink`` by Debezium's JDBC sink; one task."""
    sizes = plan.sizes
    with _running(sizes, "debezium-jdbc") as peer, running_postgres(fsync="on") as server:
        columns = orders(sizes.connect_orders)
        topic = peer.filled(
            pc.binary_join_element_wise(_SCHEMA.encode(), column, b"}", b"") for column in columns
        )
        for run in range(plan.runs):
            with server.database() as database:
                yield {"debezium_jdbc_sink": _jdbc_rate(peer, run, topic, database, sizes)}


def _jdbc_rate(peer: _Peer, run: int, topic: str, database: str, sizes: Sizes) -> float:
    place = conninfo_to_dict(database)
    url = f"jdbc:postgresql://{place['host']}:{place['port']}/{place['dbname']}"
    config = {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": topic,
        "connection.url": f"{url}?reWriteBatchedInserts=true",
        "connection.username": str(place["user"]),
        "connection.password": "any",
        "value.converter": _JSON,
        "insert.mode": "insert",
        "primary.key.mode": "record_value",
        "primary.key.fields": "id",
        "schema.evolution": "basic",
        "collection.name.format": "orders",
        # By default both are 500.
        "batch.size": "3000",
        "consumer.override.max.poll.records": "3000",
    }
    with psycopg.connect(database, autocommit=True) as connection:

        def count() -> int:
            return number_in(connection, "SELECT count(*) FROM orders")

        with peer.worker.connector(f"to-postgres-{run}", config):
            rate = rate_of(count, sizes.connect_orders, peer.worker, look=0.5)
        assert_rows(connection, sizes.connect_orders)
    return rate


@benchmark(
    {"debezium_postgres_snapshot": "rows/s", "debezium_postgres_changes": "rows/s"},
    peers=True,
    turns="postgres-source",
)
def debezium_source(plan: Plan) -> Iterator[Mapping[str, float]]:
    """Read the table of ``connect_postgres_snapshot`` by Debezium, exactly once into the topic."""
    sizes = plan.sizes
    with _running(sizes, "debezium-postgres") as peer, running_postgres(fsync="on") as server:
        for run in range(plan.runs):
            with server.database() as database:
                yield _debezium_rates(peer, run, database, sizes)


def _debezium_rates(peer: _Peer, run: int, database: str, sizes: Sizes) -> Mapping[str, float]:
    place, topic, rows = conninfo_to_dict(database), f"run{run}.public.orders", sizes.connect_orders
    table_of_orders(database, rows)
    peer.kafka.create(topic, QUEUES)
    config = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": str(place["host"]),
        "database.port": str(place["port"]),
        "database.user": str(place["user"]),
        "database.password": "any",
        "database.dbname": str(place["dbname"]),
        "topic.prefix": f"run{run}",
        "table.include.list": "public.orders",
        "publication.autocreate.mode": "filtered",
        "slot.name": f"run{run}",
        "slot.drop.on.stop": "true",
        "key.converter": _JSON,
        "key.converter.schemas.enable": "false",
        "value.converter": _JSON,
        "value.converter.schemas.enable": "false",
        **_BOUNDARY,
    }
    name = f"from-postgres-{run}"
    with visible(peer.kafka, topic) as shown, peer.worker.connector(name, config):
        snapshot = rate_of(shown, rows, peer.worker)
        with inserting(database, rows):
            changes = rate_of(lambda: shown() - rows, rows, peer.worker)
        assert_changes(committed(peer.kafka, topic), 2 * rows)
    return {"debezium_postgres_snapshot": snapshot, "debezium_postgres_changes": changes}
