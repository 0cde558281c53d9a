"""A real Apache Kafka in KRaft mode, of one node or some, that is gone afterwards."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.connect.servers.ending import dies_with_parent
from tests.connect.servers.gate import Gate

SCRIPT = Path(__file__).parent / "kafka"
_numbers = itertools.count(1)
_CONFIG = """
process.roles={roles}
node.id={node}
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
default.replication.factor={nodes}
offsets.topic.replication.factor={nodes}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={nodes}
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.enable=false
"""


@dataclass(slots=True)
class KafkaNode:
    """One broker, which may end and be started again on its folder, at its port."""

    port: int
    _folder: Path
    _java: str = ""
    _process: subprocess.Popen[bytes] | None = None

    def crash(self) -> None:
        """End as a power cut does it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)

    def start(self) -> bool:
        """Start, and tell whether it answers."""
        config = self._folder / "server.properties"
        self._process = spawn(["run", config], self._folder / "log", self._java)
        return _answers(self._process, self.port)

    @property
    def logged(self) -> str:
        """What it has printed."""
        return (self._folder / "log").read_text()

    def logs(self) -> list[Path]:
        """Name the files of records; the controller's own are flushed with each write."""
        found = self._folder.glob("data/*/*.log")
        return [log for log in found if not log.parent.name.startswith("__cluster")]


@dataclass(slots=True)
class KafkaServer:
    """Where a running cluster is; whoever has started it may also end it and start it again."""

    address: str
    #: The first is the controller, too.
    nodes: list[KafkaNode] = field(default_factory=list)

    @contextmanager
    def about_to_crash(self) -> Iterator[None]:
        """End all as a power cut does; what is written meanwhile is lost."""
        before = {log: log.stat().st_size for log in self._logs()}
        yield
        self.crash()
        for log in self._logs():
            os.truncate(log, before.get(log, 0))

    def _logs(self) -> list[Path]:
        return [log for node in self.nodes for log in node.logs()]

    def crash(self) -> None:
        """End all as a power cut does."""
        for node in self.nodes:
            node.crash()

    def start(self) -> None:
        """Start all again."""
        for node in self.nodes:
            assert node.start(), node.logged

    def create_topic(self, partitions: int = 1) -> str:
        """Make a topic that no other test has; give its name."""
        name = f"topic-{next(_numbers)}-{time.time_ns()}"
        self.create(name, partitions)
        return name

    def create(self, name: str, partitions: int = 1) -> None:
        """Make a topic; the last node leads it, where there are several."""
        admin = AdminClient({"bootstrap.servers": self.address})
        nodes = list(range(len(self.nodes), 0, -1)) or [1]
        wanted = NewTopic(name, num_partitions=partitions, replica_assignment=[nodes] * partitions)
        admin.create_topics([wanted])[name].result(timeout=30)
        # The broker lists a topic some moments after it has made it.
        deadline = time.monotonic() + 30
        while name not in admin.list_topics(timeout=30).topics:
            assert time.monotonic() < deadline, f"Kafka does not list {name}"
            time.sleep(0.01)


@contextmanager
def running_kafka(java: str = "", gates: Sequence[Gate] = ()) -> Iterator[KafkaServer]:
    """Start Kafka on free ports of 127.0.0.1; stop and remove it in any case.

    ``java`` replaces the options of the Java process, which are for a quick start.  Where there are
    gates, each has a node behind it, and clients reach that through it.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
    server = KafkaServer("")
    try:
        for _ in range(3):
            server.nodes = _nodes(folder, java, gates)
            ports = [gate.port for gate in gates] or [server.nodes[0].port]
            server.address = ",".join(f"127.0.0.1:{port}" for port in ports)
            if all(node.start() for node in server.nodes):
                break
            server.crash()
        else:
            raise AssertionError(
                "\n".join(f"Kafka did not start: {node.logged}" for node in server.nodes)
            )
        yield server
    finally:
        server.crash()
        shutil.rmtree(folder, ignore_errors=True)


def _nodes(folder: Path, java: str, gates: Sequence[Gate]) -> list[KafkaNode]:
    count = max(1, len(gates))
    controller, *ports = free_ports(1 + count)
    nodes = []
    for number, port in enumerate(ports, 1):
        own = folder / str(number)
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        listeners, roles = f"PLAINTEXT://127.0.0.1:{port}", "broker"
        if number == 1:
            roles += ",controller"
            listeners += f",CONTROLLER://127.0.0.1:{controller}"
        if gates:
            gates[number - 1].target = port
        config = own / "server.properties"
        config.write_text(
            _CONFIG.format(
                roles=roles,
                node=number,
                nodes=count,
                controller=controller,
                listeners=listeners,
                advertised=gates[number - 1].port if gates else port,
                folder=own,
            )
        )
        with (own / "log").open("wb") as output:
            subprocess.run(
                [SCRIPT, "format", config], check=True, stdout=output, stderr=output, timeout=120
            )
        nodes.append(KafkaNode(port, own, java))
    return nodes


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                time.sleep(0.1)
                continue
        try:
            AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=5)
        except KafkaException:
            continue
        return True
    process.kill()
    process.wait()
    return False


def spawn(arguments: list[str | Path], log: Path, java: str = "") -> subprocess.Popen[bytes]:
    """Start one of the script's servers; what it prints goes behind what its log has."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [SCRIPT, *arguments],
            # Options for a quick start are not for a Java that has options of its own.
            env=os.environ | ({"KAFKA_JAVA": java, "JAVA_TOOL_OPTIONS": ""} if java else {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=dies_with_parent,  # noqa: PLW1509  # it makes one system call
        )


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens on now."""
    # All at once, so that no two are the same.
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
