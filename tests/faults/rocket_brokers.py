"""Two real RocketMQ brokers for a fault test: one at a time dies, or stands still, and comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.client import Client
from tests.clusters import SCRIPT, java_options, running_rocketmq, running_rocketmq_broker

#: How long a driver's lease lasts without a word of it; RocketMQ's own 60 s would be a long wait.
LEASE_SECONDS = 10

_PATIENCE = 120.0
_JAVA = f"-Drocketmq.broker.rebalance.lockMaxLiveTime={LEASE_SECONDS}000"


@dataclass(frozen=True, slots=True)
class _Server:
    name: str
    folder: Path
    port: str

    @property
    def pid(self) -> int:
        return int((self.folder / "broker.pid").read_text())

    def runs(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


class RocketBrokers:
    """The brokers of a cluster, taken in turn: what is done is done to the current one.

    Parameters
    ----------
    address
        The name server.
    servers
        The brokers.
    """

    def __init__(self, address: str, servers: list[_Server]) -> None:
        self.address = address
        self._servers = servers
        self._turn = 0

    @property
    def _current(self) -> _Server:
        return self._servers[self._turn % len(self._servers)]

    def runs(self) -> bool:
        """Whether all of them are there."""
        return all(server.runs() for server in self._servers)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the current one."""
        os.kill(self._current.pid, number)

    def kill(self) -> None:
        """End the current one as a crash would."""
        self.signal(signal.SIGKILL)
        deadline = time.monotonic() + _PATIENCE
        while self._current.runs():
            assert time.monotonic() < deadline, f"{self._current.name} does not end"
            time.sleep(0.05)

    def restart(self) -> None:
        """Start the current one again, on its folder and port; then it is the next one's turn."""
        server = self._current
        with (server.folder / "restart.out").open("w") as output:
            subprocess.run(
                [
                    SCRIPT,
                    "broker",
                    server.folder,
                    self.address,
                    server.port,
                    f"brokerName={server.name}",
                ],
                env=os.environ | java_options(_JAVA),
                check=True,
                timeout=_PATIENCE,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._await_registered(server.name)
        self._turn += 1

    def _await_registered(self, name: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        with Client(self.address) as client:
            while name not in client.brokers():
                assert time.monotonic() < deadline, f"{name} did not register"
                time.sleep(0.1)


@contextmanager
def running_rocket_brokers(folder: Path) -> Iterator[RocketBrokers]:
    """A name server and two brokers for the time of a test."""
    first, second = folder / "broker-a", folder / "broker-b"
    first.mkdir(parents=True)
    second.mkdir()
    with (
        running_rocketmq(first, java=_JAVA) as cluster,
        running_rocketmq_broker(second, cluster.namesrv, "broker-b", _JAVA) as address,
    ):
        port = int(cluster.namesrv.rpartition(":")[2]) + 1000
        servers = [
            _Server("broker-a", first, str(port)),
            _Server("broker-b", second, address.rpartition(":")[2]),
        ]
        yield RocketBrokers(cluster.namesrv, servers)
