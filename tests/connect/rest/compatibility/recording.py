"""What a real Kafka Connect 4.1.1 answers, written down.

``python -m tests.connect.rest.compatibility.recording`` asks one and writes the file anew.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.connect.rest.compatibility.answers import answers_of
from tests.connect.rest.compatibility.requests import LINES, OTHERS
from tests.connect.servers.kafka import KafkaServer, running_kafka
from tests.connect.servers.kafka_connect import running_kafka_connect

__all__ = ["answers_of_kafka_connect", "recorded"]

_FILE = Path(__file__).with_name("kafka-connect-4.1.1.json")


def recorded() -> dict[str, Any]:
    """What it has answered."""
    found: dict[str, Any] = json.loads(_FILE.read_text())
    return found


def answers_of_kafka_connect(kafka: KafkaServer, folder: Path) -> dict[str, Any]:
    """Start a worker on a Kafka and ask it."""
    for topic in (LINES, OTHERS):
        kafka.create(topic)
    with running_kafka_connect(kafka) as url:
        return answers_of(url, folder)


def _record() -> None:
    with running_kafka() as kafka, tempfile.TemporaryDirectory() as folder:
        found = answers_of_kafka_connect(kafka, Path(folder))
    lines = (f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in found.items())
    _FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    _record()
