"""A real worker of Kafka Connect, in distributed mode, that is gone afterwards."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.connect.servers.kafka import SCRIPT, KafkaServer, free_ports, spawn

_CONFIG = """
bootstrap.servers={address}
group.id=connect
listeners=http://127.0.0.1:{port}
exactly.once.source.support=enabled
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
plugin.discovery=service_load
scheduled.rebalance.max.delay.ms=0
config.storage.topic=connect-configs
config.storage.replication.factor=1
offset.storage.topic=connect-offsets
offset.storage.replication.factor=1
offset.storage.partitions=1
status.storage.topic=connect-status
status.storage.replication.factor=1
status.storage.partitions=1
"""


@contextmanager
def running_kafka_connect(
    kafka: KafkaServer, java: str = "", plugins: Sequence[str] = (), **settings: str
) -> Iterator[str]:
    """Start a worker whose sources write exactly once; give the URL of its REST API.

    ``java`` replaces the options of the Java process, which are for a quick start.  The jars of
    ``plugins`` are fetched where they are missing; settings of the worker have ``_`` for a dot.
    """
    more = {name.replace("_", "."): value for name, value in settings.items()}
    for name in plugins:
        found = subprocess.run([SCRIPT, "plugin", name], check=True, capture_output=True, text=True)
        more["plugin.path"] = found.stdout.strip()
    config = _CONFIG + "".join(f"{name}={value}\n" for name, value in more.items())
    with tempfile.TemporaryDirectory(prefix="headrace-kafka-connect-") as folder:
        process, url = _start(Path(folder), config, kafka, java)
        try:
            yield url
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)


def _start(
    folder: Path, settings: str, kafka: KafkaServer, java: str
) -> tuple[subprocess.Popen[bytes], str]:
    log, config = folder / "log", folder / "worker.properties"
    for _ in range(3):
        (port,) = free_ports(1)
        config.write_text(settings.format(address=kafka.address, port=port))
        process = spawn(["connect", config], log, java)
        url = f"http://127.0.0.1:{port}"
        if _answers(process, url):
            return process, url
    raise AssertionError(f"Kafka Connect did not start:\n{log.read_text()}")


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + 180
    while process.poll() is None and time.monotonic() < deadline:
        try:
            # It answers this one only when it has joined its group.
            if httpx.get(f"{url}/connectors", timeout=5).is_success:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    process.kill()
    process.wait()
    return False
