"""Runs an example and prints what it writes: in this process, or on Spark with ``--on spark``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import Topology, TopologyTestDriver, serdes

if TYPE_CHECKING:
    from headrace.runtime import TestRecord

__all__ = ["Given", "Row", "main", "run_here"]

START = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Given:
    """A record that an example reads: topic, value, and seconds behind the start."""

    topic: str
    value: Any
    second: float


@dataclass(frozen=True, slots=True)
class Row:
    """A record that an example wrote."""

    topic: str
    key: Any
    value: Any
    #: First second and end of its window, behind the start.
    window: tuple[float, float] | None = None

    def __str__(self) -> str:
        window = "" if self.window is None else f"  [{self.window[0]:g} s, {self.window[1]:g} s)"
        return f"{self.topic}: {self.key} = {self.value}{window}"


def main(topology: Topology, records: Sequence[Given]) -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=f"Runs the example {topology.name}.")
    parser.add_argument("--on", choices=["driver", "spark"], default="driver")
    options = parser.parse_args()
    print(topology.describe())
    print()
    run = run_here if options.on == "driver" else run_on_spark
    for row in run(topology, records):
        print(row)


def run_here(topology: Topology, records: Sequence[Given]) -> Iterator[Row]:
    """Run in this process."""
    with sent(topology, records) as driver:
        for topic in topics(topology):
            for record in driver.output(topic, _KEYED).read_all():
                yield row(topic, record)


def run_on_spark(topology: Topology, records: Sequence[Given]) -> Iterator[Row]:
    """Run on Spark, with a broker of its own in a folder that is gone afterwards."""
    from headrace.client import Client
    from headrace.embedded import embedded_broker
    from headrace.settings import JobSettings
    from headrace.spark import SparkReplay

    with (
        tempfile.TemporaryDirectory(prefix="headrace-example-") as folder,
        embedded_broker(Path(folder)) as address,
        Client(address) as client,
        sent(topology, records) as driver,
    ):
        settings = JobSettings(namesrv=address, data_dir=Path(folder))
        with SparkReplay(client, topology, settings, driver.queues) as replay:
            replay.run(driver.recorded, "same")
            for topic, messages in replay.read().items():
                for message in messages:
                    yield row(topic, message.read(serdes.as_deserializer(_KEYED)))


def sent(topology: Topology, records: Sequence[Given]) -> TopologyTestDriver:
    """Send the records to a driver."""
    driver = TopologyTestDriver(topology, partitions=1)
    for one in records:
        time = START + timedelta(seconds=one.second)
        driver.input(one.topic, serdes.json).send(one.value, time=time)
    return driver


def topics(topology: Topology) -> list[str]:
    """Name what a topology writes."""
    return list(dict.fromkeys(topic for sink in topology.sinks for topic in sink.topics))


def row(topic: str, record: TestRecord[Any, Any]) -> Row:
    """Read a result."""
    edges = [record.headers.get(f"window_{edge}_time") for edge in ("start", "end")]
    seconds = [int(edge) / 1000 - START.timestamp() for edge in edges if edge is not None]
    return Row(topic, record.key, record.value, (seconds[0], seconds[1]) if seconds else None)


_KEYED = serdes.with_key(serdes.json, of=object)
