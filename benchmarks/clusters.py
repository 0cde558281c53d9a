"""The clusters that benchmarks run against, each in processes of its own."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Literal

from benchmarks.measures import UnavailableError
from headrace.broker import spawn_broker
from tests.clusters import SCRIPT, fetch_rocketmq, missing_tool, running_rocketmq

__all__ = ["embedded", "java_command", "java_rate", "parse_rate", "real"]


@contextmanager
def embedded(*options: str) -> Iterator[tuple[str, Path]]:
    """Start an embedded broker; give its address and a folder, both gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        spawn_broker(Path(folder) / "broker", 0, options=options) as broker,
    ):
        yield broker.address, Path(folder)


@contextmanager
def real(*settings: str) -> Iterator[str]:
    """Start a real RocketMQ with ``KEY=VALUE`` settings of its broker, and give its address.

    Raises
    ------
    UnavailableError
        This machine cannot have one.
    """
    if (reason := missing_tool()) is not None:
        raise UnavailableError(reason)
    fetch_rocketmq()
    with (
        tempfile.TemporaryDirectory(prefix="rocketmq-bench-") as folder,
        running_rocketmq(Path(folder), *settings) as cluster,
    ):
        yield cluster.namesrv


def java_command(client: Literal["java", "streams"], program: str, *arguments: str) -> list[str]:
    """Make the command that runs a Java program of tests/rocketmq; its process id is Java's."""
    return [str(SCRIPT), client, str(SCRIPT.parent / program), *arguments]


def java_rate(command: list[str], patience: timedelta) -> tuple[int, float]:
    """Run a Java program; give the count and the rate that it prints."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience.total_seconds(),
        check=False,
    )
    return parse_rate(done.stdout, done.stderr)


def parse_rate(output: str, errors: str = "") -> tuple[int, float]:
    """Read ``... COUNT ... in S s = RATE ...``.

    >>> parse_rate("produced 500 messages in 0.25 s = 2000 messages/s")
    (500, 2000.0)
    """
    found = re.search(r"(\d+) \w+ in [\d.]+ s = (\d+)", output)
    if found is None:
        raise RuntimeError(f"the Java program gave no rate: {output[-1000:]}{errors[-2000:]}")
    return int(found[1]), float(found[2])
