"""Rows that flow through nine connectors of one worker, and everything that may fail meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, Self

import httpx
import psutil
import psycopg
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from pyarrow import fs

from headrace.client import Admin, Client, Message, Producer as RocketProducer, PullConsumer
from headrace.errors import TopicNotFoundError
from tests.broker.replication.test_replicas import info, promote
from tests.connect.chaos.workers import Worker
from tests.connect.servers.gate import Gate, Way
from tests.connect.servers.kafka import KafkaServer, running_kafka
from tests.connect.servers.postgres import PostgresServer, running_postgres
from tests.connect.servers.s3 import S3Bucket, S3Server
from tests.connect.servers.search import SearchServer
from tests.faults.broker import Broker, running_broker
from tests.faults.harness import PATIENT, await_true

__all__ = ["CONNECTORS", "Flow", "Scene", "running_scene"]

CONNECTORS = (
    *("pg-sink", "pg-source", "kafka-sink", "kafka-source", "rocketmq-sink", "rocketmq-source"),
    *("files-sink", "search-sink", "http-sink"),
)
ROWS = "rows"
_PATIENCE = 240.0
_JSON = {"value.converter": "json", "value.converter.schemas.enable": "false"}
_RAW = {
    f"{part}.converter": "org.apache.kafka.connect.converters.ByteArrayConverter"
    for part in ("key", "value")
}
_RESTARTS = {
    "restart.max.attempts": "-1",
    "restart.pause.ms": "200",
    "restart.pause.max.ms": "1000",
}
#: Of a second, so much a process runs that is slow, and so often.
_TURN, _TURNS = 0.01, 5


class Peer(Protocol):
    """What may be away."""

    def set(self, way: Way) -> None:
        """Change what becomes of connections."""


class Remote:
    """Another cluster: its broker ends, stands still, or gets little of the machine.

    What follows it is there for a fail-over only: it answers those who read.
    """

    def __init__(self, primary: Broker, follower: Broker) -> None:
        self._broker, self._follower = primary, follower
        self.address = f"{primary.address};{follower.address}"
        follower.kill()
        self._hurry = threading.Event()
        self._slow: threading.Thread | None = None

    def set(self, way: Way) -> None:
        """Change what becomes of it."""
        if self._slow is not None:
            self._hurry.set()
            self._slow.join()
            self._slow = None
        if way == "refuses":
            self._broker.kill()
        elif not self._broker.runs():
            self._broker.restart()
        elif way == "slow":
            self._hurry.clear()
            self._slow = threading.Thread(target=self._hold_up)
            self._slow.start()
        else:
            self._broker.signal(signal.SIGSTOP if way == "silent" else signal.SIGCONT)

    def lose_primary(self) -> None:
        """Kill the one that takes messages, once all that it confirms is elsewhere, too."""
        self._follower.restart()
        self._broker.kill()
        self._broker.restart(options=["--min-replicas", "1"])
        await_true("a follower", lambda: bool(info(self._broker.address).replicas), _PATIENCE)
        self._broker.kill()

    def fail_over(self) -> None:
        """Have the follower take its place, for good."""
        self._broker = self._follower
        promote(self._broker.address)

    def _hold_up(self) -> None:
        while not self._hurry.wait(_TURN):
            self._broker.signal(signal.SIGSTOP)
            self._hurry.wait(1 / _TURNS - _TURN)
            self._broker.signal(signal.SIGCONT)


class Reading:
    """The numbers that are somewhere.

    Parameters
    ----------
    begin
        Reads from the beginning; each turn gives what has come since the last one.
    whole
        Each turn gives everything.
    """

    def __init__(self, begin: Callable[[], Iterator[list[int]]], *, whole: bool = False) -> None:
        self._begin, self._whole = begin, whole
        self._found: list[int] = []
        self._turns = begin()

    def numbers(self) -> list[int]:
        """Give all, with those that are there twice."""
        found = next(self._turns)
        self._found = found if self._whole else self._found + found
        return self._found

    def anew(self) -> list[int]:
        """Give all, and trust nothing that was read before."""
        self._found, self._turns = [], self._begin()
        return self.numbers()


@dataclass
class Flow:
    """One connector, what it reaches, what it is given and what comes of it."""

    peer: Peer
    config: dict[str, str]
    given: Reading
    arrived: Reading
    #: Whether a row may be there twice, by the connector's contract.
    may_repeat: bool = False


class Service(ThreadingHTTPServer):
    """A web service that takes each request once, by its key.

    Parameters
    ----------
    other
        One that has the same data.
    """

    def __init__(self, other: Service | None = None) -> None:
        self.numbers: list[int] = [] if other is None else other.numbers
        self.seen: set[str] = set() if other is None else other.seen
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                key = str(self.headers["idempotency-key"])
                if key not in service.seen:
                    service.seen.add(key)
                    service.numbers += [one["n"] for one in json.loads(body)]
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@dataclass(frozen=True)
class Database:
    """A database whose server may be away, and come back at another port."""

    server: PostgresServer
    name: str

    def do(self, statement: str) -> None:
        """Carry something out; the server is there."""
        with psycopg.connect(self.server.dsn(self.name), autocommit=True) as session:
            session.execute(statement.encode())

    def insert(self, numbers: range, over: threading.Event) -> bool:
        """Insert rows, as soon as the server lets that be done; tell whether they are there."""
        while True:
            with (
                contextlib.suppress(psycopg.OperationalError),
                psycopg.connect(self.server.dsn(self.name), autocommit=True) as session,
                session.cursor() as cursor,
            ):
                rows = [(n,) for n in numbers]
                cursor.executemany("INSERT INTO origin VALUES (%s) ON CONFLICT DO NOTHING", rows)
                return True
            if over.wait(0.1):
                return False

    def numbers(self, table: str) -> Iterator[list[int]]:
        """Read a table, which may not be there yet."""
        while True:
            try:
                with psycopg.connect(self.server.dsn(self.name), autocommit=True) as session:
                    found = session.execute(f"SELECT n FROM {table}".encode()).fetchall()
            except psycopg.errors.UndefinedTable:
                found = []
            yield [int(n) for (n,) in found]


def of_topic(client: Client, topic: str) -> Iterator[list[int]]:
    consumer = PullConsumer(client, "flows")
    read: dict[Any, int] = {}
    while True:
        bodies: list[bytes] = []
        with contextlib.suppress(TopicNotFoundError):
            for queue, end in consumer.end_offsets(client.queues(topic, refresh=True)).items():
                for block in consumer.blocks(queue, read.get(queue, 0), end):
                    bodies += block.columns().body.to_pylist()
                read[queue] = end
        yield [int(json.loads(body)["n"]) for body in bodies]


def of_kafka(address: str, topic: str) -> Iterator[list[int]]:
    settings = {"bootstrap.servers": address, "group.id": "x", "enable.partition.eof": True}
    settings |= {"isolation.level": "read_committed", "auto.offset.reset": "error"}
    place = 0
    while True:
        consumer = Consumer(settings)
        found: list[int] = []
        try:
            # Where rows come all the time, the end is never seen.
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
            consumer.assign([TopicPartition(topic, 0, place)])
            while place < end and (message := consumer.poll(5)) is not None:
                if message.error() is not None:
                    break
                found.append(int(json.loads(message.value() or b"")["n"]))
                place = (message.offset() or 0) + 1
        except KafkaException:
            # Who has asked a node that is gone asks no other one: the next turn does.
            pass
        finally:
            consumer.close()
        yield found


def in_objects(bucket: S3Bucket) -> Iterator[list[int]]:
    """Read the objects of rows; one that is written again counts as it is now."""
    read: dict[str, tuple[int, object, list[int]]] = {}
    while True:
        where = fs.FileSelector(f"{bucket.name}/raw", recursive=True, allow_not_found=True)
        there = {one.path: one for one in bucket.files.get_file_info(where) if "jsonl" in one.path}
        for path in set(read) - set(there):
            del read[path]
        for path, one in there.items():
            if path not in read or read[path][:2] != (one.size, one.mtime_ns):
                text = bucket.get(path.removeprefix(f"{bucket.name}/")).decode()
                numbers = [int(json.loads(line)["n"]) for line in text.splitlines()]
                read[path] = one.size, one.mtime_ns, numbers
        yield [n for _, _, numbers in read.values() for n in numbers]


def in_index(search: SearchServer, index: str) -> Iterator[list[int]]:
    search.ask("PUT", f"{index}/_settings", {"index": {"max_result_window": 1_000_000}})
    while True:
        search.ask("POST", f"{index}/_refresh")
        found = search.ask("POST", f"{index}/_search", {"size": 1_000_000, "_source": ["n"]})
        yield [int(hit["_source"]["n"]) for hit in found["hits"]["hits"]]


class Feeding:
    """Gives numbers to all sources, until it is left."""

    def __init__(self, client: Client, database: Database, kafka: KafkaServer) -> None:
        self._client, self._database, self._kafka = client, database, kafka
        Admin(client).create_topic(ROWS, queues=2)
        database.do("CREATE TABLE origin (n bigint primary key)")
        for topic in ("origin", "copies"):
            kafka.create(topic)
        #: Numbers below it were given to all.
        self.count = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Give no more."""
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        rocket = RocketProducer(self._client)
        kafka = Producer({"bootstrap.servers": self._kafka.address, "message.timeout.ms": 0})
        while not self._over.wait(0.2):
            numbers = range(self.count, self.count + 10)
            bodies = [json.dumps({"n": n}).encode() for n in numbers]
            rocket.send_batch([Message(topic=ROWS, body=body) for body in bodies])
            if not self._database.insert(numbers, self._over):
                break
            for body in bodies:
                kafka.produce("origin", body)
            kafka.poll(0)
            self.count = numbers.stop
        kafka.flush(60)


@dataclass
class Scene:
    """Everything, with rows that flow."""

    worker: Worker
    broker: Broker
    database: Database
    kafka: KafkaServer
    #: What stands before servers of others, by their names.
    gates: dict[str, Gate]
    remote: Remote
    #: The port of a second web service with the data of the first.
    standby: int
    feeding: Feeding
    flows: dict[str, Flow]
    #: Numbers that may be lost, as peers have lost what they had confirmed.
    lost: list[range] = field(default_factory=list)

    @property
    def peers(self) -> list[Peer]:
        """All that connectors reach."""
        return [*self.gates.values(), self.remote]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the worker; nothing comes where it does not answer."""
        if not self.worker.url:
            return None
        with contextlib.suppress(httpx.HTTPError):
            url = f"{self.worker.url}{path}"
            answer = httpx.request(method, url, json=body, trust_env=False, timeout=20)
            if answer.is_success:
                return answer.json() if answer.content else True
        return None

    def states(self) -> dict[str, tuple[str, str]]:
        """Return the state of each connector's only task, and what it waits for."""
        found = {}
        told = self.ask("GET", "/connectors?expand=status") or {}
        for name in self.flows:
            tasks = told[name]["status"]["tasks"] if name in told else [{"state": "no answer"}]
            for task in tasks or [{"state": "no task"}]:
                found[name] = task["state"], task.get("waits_for") or ""
        return found

    def hosts(self) -> dict[str, tuple[int, int]]:
        """Return the process of each connector's task, with the task's generation."""
        return {
            one["connector"]: (one["pid"], one["generation"])
            for one in self.ask("GET", "/admin/tasks") or []
            if one["task"] is not None and one["pid_alive"]
        }

    def kill_hosts(self) -> None:
        """SIGKILL the processes of all tasks."""
        for pid, _ in self.hosts().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the worker, and see that nothing is left of it."""
        family = self.worker.family()
        try:
            self.worker.stop(60)
            await_true("no process of the worker", lambda: not any(map(_lives, family)), 30)
        finally:
            for process in filter(_lives, family):
                process.kill()


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def running_scene(folder: Path, storage: S3Server, search: SearchServer) -> Iterator[Scene]:
    """Start all, and have rows flow until it is left."""
    with ExitStack() as stack:
        gates = {
            name: stack.enter_context(Gate())
            for name in ("postgres", "kafka", "kafka-2", "s3", "search", "http")
        }
        server = stack.enter_context(running_postgres())
        gates["postgres"].target = server.port
        gates["s3"].target = int(storage.endpoint.rpartition(":")[2])
        gates["search"].target = int(search.url.rpartition(":")[2])
        kafka = stack.enter_context(running_kafka(gates=[gates["kafka"], gates["kafka-2"]]))
        broker = stack.enter_context(running_broker(folder / "broker"))
        client = stack.enter_context(Client(broker.address, PATIENT))
        services = [stack.enter_context(Service())]
        services.append(stack.enter_context(Service(services[0])))
        for service in services:
            serving = threading.Thread(target=service.serve_forever, args=(0.05,))
            serving.start()
            stack.callback(serving.join)
            stack.callback(service.shutdown)
        gates["http"].target = services[0].server_address[1]
        database = Database(server, "postgres")
        feeding = Feeding(client, database, kafka)
        primary = stack.enter_context(running_broker(folder / "1"))
        follows = ["--follow", primary.address]
        follower = stack.enter_context(running_broker(folder / "2", follows, topics=()))
        remote = Remote(primary, follower)
        stack.callback(remote.set, "open")
        other = stack.enter_context(Client(remote.address, PATIENT))
        Admin(other).create_topic("there", queues=2)
        given = {
            "rows": Reading(partial(of_topic, client, ROWS)),
            "there": Reading(partial(of_topic, other, "there")),
        }
        ends = Ends(gates, client, database, kafka, storage.bucket(), search, services[0])
        scene = Scene(
            Worker("w1", broker.address, folder),
            broker,
            database,
            kafka,
            gates,
            remote,
            services[1].server_address[1],
            feeding,
            ends.sinks(given["rows"]) | ends.sources() | flows_of_remote(client, remote, given),
        )
        for flow in scene.flows.values():
            flow.config |= _RESTARTS
        scene.worker.start()
        stack.callback(scene.close)
        await_true("a worker that is ready", lambda: bool(scene.worker.url), _PATIENCE)
        stack.enter_context(feeding)
        for connector, flow in scene.flows.items():
            body = {"name": connector, "config": flow.config}
            assert scene.ask("POST", "/connectors", body), scene.worker.log.read_text()
        yield scene


@dataclass(frozen=True)
class Ends:
    """What stands at the other ends of connectors, but for the other cluster."""

    gates: Mapping[str, Gate]
    #: Of the worker's own brokers.
    client: Client
    database: Database
    kafka: KafkaServer
    bucket: S3Bucket
    search: SearchServer
    service: Service

    def sinks(self, given: Reading) -> dict[str, Flow]:
        """Make those that write what is in the topic of rows."""
        index = self.search.index()
        storage = {**self.bucket.config, "endpoint": self._url("s3"), "uri": self.bucket.uri("raw")}
        found: dict[str, tuple[str, dict[str, str], Reading]] = {
            "pg-sink": (
                "postgres",
                {"connector.class": "postgres-sink", "connection.url": self._of_database()}
                | {"auto.create": "true", "insert.mode": "insert", "pk.mode": "none"},
                Reading(partial(self.database.numbers, "rows"), whole=True),
            ),
            "kafka-sink": (
                "kafka",
                {"connector.class": "kafka-sink", "kafka.bootstrap.servers": self.kafka.address}
                | {"kafka.topic.format": "copies"}
                | _RAW,
                Reading(partial(of_kafka, self.kafka.address, "copies")),
            ),
            "files-sink": (
                "s3",
                {"connector.class": "files-sink", "format": "jsonl", "compression": "none"}
                | {"request.attempts": "2"}
                | storage,
                Reading(partial(in_objects, self.bucket), whole=True),
            ),
            "search-sink": (
                "search",
                {"connector.class": "elasticsearch-sink", "url": self._url("search")}
                | {"index": index},
                Reading(partial(in_index, self.search, index), whole=True),
            ),
            "http-sink": (
                "http",
                {"connector.class": "http-sink", "url": self._url("http")},
                Reading(self._taken, whole=True),
            ),
        }
        return {
            name: Flow(
                self.gates[peer],
                {"topics": ROWS} | _JSON | config,
                given,
                arrived,
                # Requests that were cut off are made again, perhaps cut otherwise.
                may_repeat=name == "http-sink",
            )
            for name, (peer, config, arrived) in found.items()
        }

    def sources(self) -> dict[str, Flow]:
        """Make those that bring numbers into topics."""
        database = {
            "connector.class": "postgres-source",
            "connection.url": self._of_database(),
            "mode": "logical",
            "tables": "origin",
            "topic.prefix": "pg-",
        }
        kafka = {
            "connector.class": "kafka-source",
            "kafka.bootstrap.servers": self.kafka.address,
            "kafka.topics": "origin",
            "topic.format": "kafka-${topic}",
        }
        return {
            "pg-source": Flow(
                self.gates["postgres"],
                database | _JSON,
                Reading(partial(self.database.numbers, "origin"), whole=True),
                Reading(partial(of_topic, self.client, "pg-origin")),
            ),
            "kafka-source": Flow(
                self.gates["kafka"],
                kafka | _RAW,
                Reading(partial(of_kafka, self.kafka.address, "origin")),
                Reading(partial(of_topic, self.client, "kafka-origin")),
            ),
        }

    def _url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.gates[name].port}"

    def _of_database(self) -> str:
        port = self.gates["postgres"].port
        return f"postgresql://127.0.0.1:{port}/{self.database.name}?user=postgres"

    def _taken(self) -> Iterator[list[int]]:
        while True:
            yield list(self.service.numbers)


def flows_of_remote(
    client: Client, remote: Remote, given: Mapping[str, Reading]
) -> dict[str, Flow]:
    """Make the connectors between two clusters; the source brings back what the sink has taken."""
    reach = {"rocketmq.namesrv": remote.address} | _RAW
    sink = {
        "connector.class": "rocketmq-sink",
        "topics": ROWS,
        "topic.format": "there",
        "local.cluster": "here",
        "remote.cluster": "there",
    }
    source = {
        "connector.class": "rocketmq-source",
        "rocketmq.topics": "there",
        "topic.format": "back",
        "local.cluster": "elsewhere",
        "remote.cluster": "there",
    }
    return {
        "rocketmq-sink": Flow(remote, sink | reach, given["rows"], given["there"]),
        "rocketmq-source": Flow(
            remote,
            source | reach,
            given["there"],
            Reading(partial(of_topic, client, "back")),
        ),
    }
