"""A real Apache Kafka, one node in KRaft mode, that is gone afterwards."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.connect.servers.ending import dies_with_parent
from tests.connect.servers.gate import Gate

SCRIPT = Path(__file__).parent / "kafka"
_numbers = itertools.count(1)
_CONFIG = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{advertised}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.enable=false
"""


@dataclass(slots=True)
class KafkaServer:
    """Where a running broker is; whoever has started it may also end it and start it again."""

    address: str
    _folder: Path = Path()
    _port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def crash(self) -> None:
        """End it as a power cut does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=30)

    @contextmanager
    def about_to_crash(self) -> Iterator[None]:
        """End it as a power cut does; what is written meanwhile is lost."""
        before = {log: log.stat().st_size for log in self._logs()}
        yield
        self.crash()
        for log in self._logs():
            os.truncate(log, before.get(log, 0))

    def start(self) -> None:
        """Start it again on its folder, at its ports."""
        log = self._folder / "log"
        self._process = spawn(["run", self._folder / "server.properties"], log)
        assert _answers(self._process, self._port), log.read_text()

    def _logs(self) -> list[Path]:
        """Name the files of records; the controller's own are flushed with each write."""
        found = self._folder.glob("data/*/*.log")
        return [log for log in found if not log.parent.name.startswith("__cluster")]

    def create_topic(self, partitions: int = 1) -> str:
        """Make a topic that no other test has; give its name."""
        name = f"topic-{next(_numbers)}-{time.time_ns()}"
        self.create(name, partitions)
        return name

    def create(self, name: str, partitions: int = 1) -> None:
        """Make a topic."""
        admin = AdminClient({"bootstrap.servers": self.address})
        made = admin.create_topics([NewTopic(name, num_partitions=partitions)])
        made[name].result(timeout=30)
        # The broker lists a topic some moments after it has made it.
        deadline = time.monotonic() + 30
        while name not in admin.list_topics(timeout=30).topics:
            assert time.monotonic() < deadline, f"Kafka does not list {name}"
            time.sleep(0.01)


@contextmanager
def running_kafka(java: str = "", gate: Gate | None = None) -> Iterator[KafkaServer]:
    """Start Kafka on free ports of 127.0.0.1; stop and remove it in any case.

    ``java`` replaces the options of the Java process, which are for a quick start.  Clients reach
    it through the gate, where there is one.
    """
    folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
    try:
        process, port = _start(folder, java, gate)
        address = f"127.0.0.1:{port if gate is None else gate.port}"
        server = KafkaServer(address, folder, port, process)
        try:
            yield server
        finally:
            server.crash()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, java: str, gate: Gate | None) -> tuple[subprocess.Popen[bytes], int]:
    log = folder / "log"
    for _ in range(3):
        port, controller = free_ports(2)
        config = folder / "server.properties"
        if gate is not None:
            gate.target = port
        advertised = port if gate is None else gate.port
        config.write_text(
            _CONFIG.format(port=port, advertised=advertised, controller=controller, folder=folder)
        )
        shutil.rmtree(folder / "data", ignore_errors=True)
        with log.open("wb") as output:
            subprocess.run(
                [SCRIPT, "format", config], check=True, stdout=output, stderr=output, timeout=120
            )
        process = spawn(["run", config], log, java)
        if _answers(process, port):
            return process, port
    raise AssertionError(f"Kafka did not start:\n{log.read_text()}")


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
