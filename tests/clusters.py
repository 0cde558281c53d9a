"""Clusters to test against, and the tools that come with a real RocketMQ."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from headrace.client import Client, MessageQueue, PullConsumer

SCRIPT = Path(__file__).parent / "rocketmq" / "rocketmq"
_STARTS = 3
_TAKEN = (-2, 0, 1, 998, 1000, 1001)


@dataclass(frozen=True)
class Cluster:
    """A running cluster, whichever kind it is."""

    kind: Literal["embedded", "rocketmq"]
    namesrv: str

    def mqadmin(self, *arguments: str) -> str:
        """Run RocketMQ's own administration tool and return what it prints."""
        require_rocketmq()
        done = subprocess.run(
            [SCRIPT, "admin", self.namesrv, *arguments],
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def running_rocketmq(folder: Path, *settings: str, java: str = "") -> Iterator[Cluster]:
    """Start a real RocketMQ on free ports, with ``KEY=VALUE`` settings; stop it in any case.

    ``java`` are options of the Java process.
    """
    require_rocketmq()
    try:
        port = _start(folder, lambda port: ["start", folder, port, *settings], java)
        address = f"127.0.0.1:{port}"
        _await_registration(address)
        yield Cluster("rocketmq", address)
    finally:
        # Its data go anyway, and an orderly end takes it half a minute.
        subprocess.run([SCRIPT, "stop", folder, "-9"], check=False, timeout=120)


@contextmanager
def running_name_server(folder: Path) -> Iterator[str]:
    """Start RocketMQ's name server alone, and give its address."""
    require_rocketmq()
    try:
        yield f"127.0.0.1:{_start(folder, lambda port: ['names', folder, port])}"
    finally:
        subprocess.run([SCRIPT, "stop", folder, "-9"], check=False, timeout=120)


@contextmanager
def running_rocketmq_broker(folder: Path, namesrv: str, name: str, java: str = "") -> Iterator[str]:
    """Start a real broker alone; give its address once a name server knows it."""
    require_rocketmq()
    named = f"brokerName={name}"
    try:
        port = _start(folder, lambda port: ["broker", folder, namesrv, port, named], java)
        _await_registration(namesrv, name)
        yield f"127.0.0.1:{port}"
    finally:
        subprocess.run([SCRIPT, "stop", folder, "-9"], check=False, timeout=120)


def _start(folder: Path, arguments: Callable[[str], list[str | Path]], java: str = "") -> int:
    """Start servers on free ports, again when somebody else was quicker to take one of them."""
    for attempt in range(_STARTS):
        port = _free_ports()
        # Its servers keep the streams they are given: a pipe would never end.
        with (folder / "start.out").open("w") as output:
            done = subprocess.run(
                [SCRIPT, *arguments(str(port))],
                env=os.environ | java_options(java),
                check=attempt == _STARTS - 1,
                timeout=180,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        if done.returncode == 0:
            return port
        subprocess.run([SCRIPT, "stop", folder, "-9"], check=False, timeout=120)
    raise AssertionError("the last attempt raises")


def java_options(more: str) -> dict[str, str]:
    """The variable that gives each Java more options than those of the run."""
    return {"JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {more}"}


def _await_registration(address: str, name: str = "broker-a") -> None:
    # The broker says that it has started some seconds before the name server knows it.
    deadline = time.monotonic() + 60
    with Client(address) as client:
        while name not in client.brokers():
            assert time.monotonic() < deadline, "the broker did not register within 60 s"
            time.sleep(0.1)


def await_messages(client: Client, queue: MessageQueue, count: int) -> None:
    """Wait until a queue shows so many messages: RocketMQ confirms them some time before."""
    consumer = PullConsumer(client)
    deadline = time.monotonic() + 10
    while (found := consumer.pull(queue, 0, max_messages=1).max_offset) < count:
        assert time.monotonic() < deadline, f"{queue} shows {found} of {count} messages"
        time.sleep(0.005)


def fetch_rocketmq() -> None:
    """Download the jars, unless that was done before or cannot be done here."""
    if missing_tool() is None:
        subprocess.run([SCRIPT, "fetch"], check=True, timeout=900)


def missing_tool() -> str | None:
    """Say what a real RocketMQ lacks on this machine; None: nothing."""
    cache = Path(os.environ.get("ROCKETMQ_CACHE", Path.home() / ".cache" / "rocketmq-peer"))
    if shutil.which("java") is None:
        return "Java is not installed, which RocketMQ needs"
    if shutil.which("mvn") is None and not (cache / ".done").exists():
        return "Maven is not installed, which fetches RocketMQ's jars"
    return None


def require_rocketmq() -> None:
    """Skip a test that cannot have a real RocketMQ; in CI it fails instead."""
    reason = missing_tool()
    if reason is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; in CI these tests must run")
    pytest.skip(reason)


def _free_ports() -> int:
    # A broker's other ports are two below and one above its own; where a name server comes with
    # it, its own is that of the name server and a thousand.
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 64_000 and all(_is_free(port + more) for more in _TAKEN):
            return port
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
