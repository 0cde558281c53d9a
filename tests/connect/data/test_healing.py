"""What connectors reach is away while rows flow: each says so, goes on by itself, and is exact."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, Self

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.client import Admin, Client, Message, PullConsumer
from headrace.client import Producer as RocketProducer
from headrace.connect.data import DataPlane
from headrace.connect.hosts import HostSettings, ProcessLauncher
from headrace.errors import TopicNotFoundError
from tests.connect.running import Running, quick_settings, running
from tests.connect.servers.gate import Gate, Way
from tests.connect.servers.kafka import KafkaServer, running_kafka
from tests.connect.servers.postgres import PostgresServer
from tests.connect.servers.s3 import S3Server
from tests.connect.servers.search import SearchServer
from tests.faults.broker import Broker, running_broker
from tests.faults.harness import await_true

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.slow]

ROWS = "rows"
#: How long everything is away, s.
AWAY = 18.0
_PATIENCE = 240.0
_JSON = {"value.converter": "json", "value.converter.schemas.enable": "false"}
_RAW = {
    f"{part}.converter": "org.apache.kafka.connect.converters.ByteArrayConverter"
    for part in ("key", "value")
}


class Peer(Protocol):
    """What may be away."""

    def set(self, way: Way) -> None:
        """Change what becomes of connections."""


class Remote:
    """Another cluster: its broker ends, or stands still."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.address = broker.address

    def set(self, way: Way) -> None:
        """Change what becomes of it."""
        if way == "refuses":
            self._broker.kill()
        elif not self._broker.runs():
            self._broker.restart()
        else:
            self._broker.signal(signal.SIGSTOP if way == "silent" else signal.SIGCONT)


@dataclass
class Flow:
    """One connector, what it reaches, and what has come of it."""

    peer: Peer
    config: dict[str, str]
    #: Gives all numbers at the other end, with those that are there twice.
    arrived: Callable[[], list[int]]
    #: Whether a row may be there twice.
    may_repeat: bool = False


@dataclass
class Scene:
    """Everything, with rows that flow."""

    worker: Running
    feeding: Feeding
    flows: dict[str, Flow]

    def states(self) -> dict[str, tuple[str, str]]:
        """Return the state of each connector's only task, and what it waits for."""
        found = {}
        for name in self.flows:
            (task,) = self.worker.ask("GET", f"/connectors/{name}/status").json()["tasks"]
            found[name] = task["state"], task.get("waits_for", "")
        return found


class Service(ThreadingHTTPServer):
    """A web service that takes each request once, by its key."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        seen: set[str] = set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                key = str(self.headers["idempotency-key"])
                if key not in seen:
                    seen.add(key)
                    service.numbers += [one["n"] for one in json.loads(body)]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        super().__init__(("127.0.0.1", 0), Handler)


def of_topic(client: Client, topic: str, number: Callable[[Any], int]) -> list[int]:
    consumer = PullConsumer(client, "healing")
    try:
        queues = client.queues(topic, refresh=True)
    except TopicNotFoundError:
        return []
    ends = consumer.end_offsets(queues)
    bodies = [
        body
        for queue, end in ends.items()
        for block in consumer.blocks(queue, consumer.begin_offset(queue), end)
        for body in block.columns().body.to_pylist()
    ]
    return [number(json.loads(body)) for body in bodies]


def of_kafka(address: str, topic: str) -> list[int]:
    settings = {"bootstrap.servers": address, "group.id": "x", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    try:
        while True:
            for message in consumer.consume(1000, timeout=5):
                if message.error() is not None:
                    return found
                found.append(json.loads(message.value() or b"")["n"])
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory,
    postgres: PostgresServer,
    storage: S3Server,
) -> Iterator[Scene]:
    from tests.run.servers import shared

    folder = tmp_path_factory.mktemp("healing")
    search = SearchServer(shared("opensearch")["url"])
    with ExitStack() as stack:
        gates = {
            name: stack.enter_context(Gate())
            for name in ("postgres", "kafka", "s3", "search", "http")
        }
        gates["postgres"].target = postgres.port
        gates["s3"].target = int(storage.endpoint.rpartition(":")[2])
        gates["search"].target = int(search.url.rpartition(":")[2])
        kafka = stack.enter_context(running_kafka(gate=gates["kafka"]))
        broker = stack.enter_context(running_broker(folder / "broker"))
        client = stack.enter_context(Client(broker.address))
        service = stack.enter_context(Service())
        serving = threading.Thread(target=service.serve_forever, args=(0.05,))
        serving.start()
        stack.callback(serving.join)
        stack.callback(service.shutdown)
        gates["http"].target = service.server_address[1]
        database = stack.enter_context(psycopg.connect(postgres.dsn(), autocommit=True))
        name = f"healing_{time.time_ns()}"
        database.execute(f"CREATE DATABASE {name}")
        database = stack.enter_context(psycopg.connect(postgres.dsn(name), autocommit=True))
        database.execute("CREATE TABLE origin (n bigint primary key)")
        feeding = Feeding(client, database, kafka)
        remote = Remote(stack.enter_context(running_broker(folder / "remote")))
        with Client(remote.address) as other:
            Admin(other).create_topic("there", queues=2)
        scene = Scene(
            worker(stack, folder, broker.address),
            feeding,
            flows(gates, feeding, database, kafka, storage, search, service)
            | flows_of_remote(feeding, remote),
        )
        stack.enter_context(feeding)
        for connector, flow in scene.flows.items():
            made = scene.worker.ask(
                "POST", "/connectors", json={"name": connector, "config": flow.config}
            )
            assert made.status_code == 201, made.text
        yield scene


def worker(stack: ExitStack, folder: Path, address: str) -> Running:
    def make() -> DataPlane:
        launcher = ProcessLauncher(folder / "hosts", HostSettings(probe_interval=6))
        return DataPlane(launcher, address, folder / "engine")

    times = quick_settings(start_timeout="120 s", graceful_timeout="5 s", cancel_timeout="5 s")
    made = running(make, lambda plane: plane, settings=times)  # type: ignore[arg-type,return-value]
    return stack.enter_context(made)


class Feeding:
    """Gives numbers to all sources, until it is left."""

    def __init__(
        self, client: Client, database: psycopg.Connection[Any], kafka: KafkaServer
    ) -> None:
        self.client, self.database, self.kafka = client, database, kafka
        Admin(client).create_topic(ROWS, queues=2)
        for topic in ("origin", "copies"):
            kafka.create(topic)
        self.count = 0
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Give no more."""
        self.over.set()
        self._thread.join()

    def _feed(self) -> None:
        rocket = RocketProducer(self.client)
        kafka = Producer({"bootstrap.servers": self.kafka.address, "message.timeout.ms": 0})
        while not self.over.wait(0.2):
            numbers = range(self.count, self.count + 10)
            bodies = [json.dumps({"n": n}).encode() for n in numbers]
            rocket.send_batch([Message(topic=ROWS, body=body) for body in bodies])
            with self.database.cursor() as cursor:
                cursor.executemany("INSERT INTO origin VALUES (%s)", [(n,) for n in numbers])
            for body in bodies:
                kafka.produce("origin", body)
            kafka.poll(0)
            self.count = numbers.stop
        kafka.flush(60)


def flows(
    gates: dict[str, Gate],
    feeding: Feeding,
    database: psycopg.Connection[Any],
    kafka: KafkaServer,
    storage: S3Server,
    search: SearchServer,
    service: Service,
) -> dict[str, Flow]:
    def reach(name: str, scheme: str) -> str:
        return f"{scheme}://127.0.0.1:{gates[name].port}"

    url = f"{reach('postgres', 'postgresql')}/{database.info.dbname}?user=postgres"
    bucket = storage.bucket()

    def in_table() -> list[int]:
        try:
            return [int(n) for (n,) in database.execute("SELECT n FROM rows").fetchall()]
        except psycopg.errors.UndefinedTable:
            return []

    def in_objects() -> list[int]:
        texts = (bucket.get(key).decode() for key in bucket.listed("raw") if "jsonl" in key)
        return [json.loads(line)["n"] for text in texts for line in text.splitlines()]

    def in_topic(topic: str) -> list[int]:
        return of_topic(feeding.client, topic, lambda value: int(value["n"]))

    sinks: dict[str, tuple[str, dict[str, str], Callable[[], list[int]]]] = {
        "pg-sink": (
            "postgres",
            {"connector.class": "postgres-sink", "connection.url": url, "auto.create": "true"}
            | {"insert.mode": "insert", "pk.mode": "none"},
            in_table,
        ),
        "kafka-sink": (
            "kafka",
            {"connector.class": "kafka-sink", "kafka.bootstrap.servers": kafka.address}
            | {"kafka.topic.format": "copies"}
            | _RAW,
            lambda: of_kafka(kafka.address, "copies"),
        ),
        "s3-sink": (
            "s3",
            {"connector.class": "s3-sink", **bucket.config, "endpoint": reach("s3", "http")}
            | {"prefix": "raw", "format": "jsonl", "compression": "none"}
            | {"request.attempts": "2"},
            in_objects,
        ),
        "search-sink": (
            "search",
            {"connector.class": "elasticsearch-sink", "url": reach("search", "http")}
            | {"index": search.index()},
            list,
        ),
        "http-sink": (
            "http",
            {"connector.class": "http-sink", "url": reach("http", "http")},
            lambda: list(service.numbers),
        ),
    }
    index = sinks["search-sink"][1]["index"]
    sinks["search-sink"] = (
        *sinks["search-sink"][:2],
        lambda: [int(one["n"]) for one in search.documents(index).values()],
    )
    found = {
        name: Flow(
            gates[peer],
            {"topics": ROWS} | _JSON | config,
            arrived,
            # Requests that were cut off are made again, perhaps cut otherwise.
            may_repeat=name == "http-sink",
        )
        for name, (peer, config, arrived) in sinks.items()
    }
    found["pg-source"] = Flow(
        gates["postgres"],
        {"connector.class": "postgres-source", "connection.url": url, "mode": "logical"}
        | {"tables": "origin", "topic.prefix": "pg-"}
        | _JSON,
        lambda: in_topic("pg-origin"),
    )
    found["kafka-source"] = Flow(
        gates["kafka"],
        {"connector.class": "kafka-source", "kafka.bootstrap.servers": kafka.address}
        | {"kafka.topics": "origin", "topic.format": "kafka-${topic}"}
        | _RAW,
        lambda: in_topic("kafka-origin"),
    )
    return found


def flows_of_remote(feeding: Feeding, remote: Remote) -> dict[str, Flow]:
    """Make the connectors between two clusters; the source brings back what the sink has taken."""

    def there() -> list[int]:
        with Client(remote.address) as client:
            return of_topic(client, "there", lambda value: int(value["n"]))

    reach = {"rocketmq.namesrv": remote.address}
    names = {"local.cluster": "here", "remote.cluster": "there"}
    return {
        "rocketmq-sink": Flow(
            remote,
            {"connector.class": "rocketmq-sink", "topics": ROWS, "topic.format": "there"}
            | reach
            | names
            | _RAW,
            there,
        ),
        "rocketmq-source": Flow(
            remote,
            {"connector.class": "rocketmq-source", "rocketmq.topics": "there"}
            | {"topic.format": "back", "local.cluster": "elsewhere", "remote.cluster": "there"}
            | reach
            | _RAW,
            lambda: of_topic(feeding.client, "back", lambda value: int(value["n"])),
        ),
    }


@pytest.mark.budget(200)
@pytest.mark.parametrize("way", ["refuses", "silent"])
def test_rows_move_again_soon_after_all_peers_were_away(scene: Scene, way: Way) -> None:
    for name, flow in scene.flows.items():
        await_true(f"rows through {name}", partial(_has, flow, [0]), _PATIENCE)
    peers = {id(flow.peer): flow.peer for flow in scene.flows.values()}.values()
    for peer in peers:
        peer.set(way)
    time.sleep(AWAY)
    said, fed = scene.states(), scene.feeding.count
    for peer in peers:
        peer.set("open")
    assert {state for state, _ in said.values()} == {"RUNNING"}
    if way == "refuses":
        assert [name for name, (_, waits_for) in said.items() if not waits_for] == []
    began = time.monotonic()
    left = set(scene.flows)
    while left:
        for name in sorted(left):
            if max(scene.flows[name].arrived(), default=-1) >= fed:
                print(f"{way}: {name} moves after {time.monotonic() - began:.1f} s")
                left.remove(name)
        assert time.monotonic() < began + _PATIENCE, f"nothing moves through {left}"
        time.sleep(0.2)
    await_true(
        "nobody waits", lambda: not any(told for _, told in scene.states().values()), _PATIENCE
    )


@pytest.mark.budget(60)
def test_no_row_was_lost_or_doubled(scene: Scene) -> None:
    scene.feeding.stop()
    expected = list(range(scene.feeding.count))
    for name, flow in scene.flows.items():
        await_true(f"all of {name}", partial(_has, flow, expected), _PATIENCE)
        found = flow.arrived()
        assert sorted(set(found)) == expected, name
        assert flow.may_repeat or len(found) == len(expected), name


def _has(flow: Flow, numbers: Iterable[int]) -> bool:
    return set(flow.arrived()).issuperset(numbers)
