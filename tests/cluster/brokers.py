"""Brokers on machines of their own: one, two with a replica each, and RocketMQ's of both kinds."""

from __future__ import annotations

import compileall
import os
import re
import shutil
import signal
import sys
import zipfile
from abc import ABC, abstractmethod
from pathlib import Path

from tests.cluster.machines import HOME, Machine, Network, Running
from tests.clusters import SCRIPT
from tests.faults.harness import await_true
from tests.run.session import QUICK_JAVA

__all__ = [
    "PACKAGES",
    "ROOT",
    "Brokers",
    "OneBroker",
    "OwnPairs",
    "Pairs",
    "RocketPairs",
    "environment",
    "headrace",
    "install",
    "unpack",
]

ROOT = Path(__file__).parents[2]
_PORT, _STOCK_PORT = 9876, 10911
_PATIENCE = 120
#: Where a machine may have a Headrace of its own, in its folder.
PACKAGES = "packages"
#: Where RocketMQ's jars are on the real machine.
_JARS = os.environ.get("ROCKETMQ_CACHE", str(Path.home() / ".cache" / "rocketmq-peer"))


def headrace(*words: object) -> list[object]:
    """Make the words of one of Headrace's commands."""
    return [sys.executable, "-m", "headrace", *words]


def environment() -> dict[str, str]:
    """Make the variables with which a clone's code goes before an installed one's.

    A machine's own build goes before that.
    """
    places = (HOME / PACKAGES, ROOT / "src", ROOT)
    return {"PYTHONPATH": os.pathsep.join(map(str, places))}


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack a build of Headrace, compiled once for all machines; give its folder.

    A machine compiles the module of Spark's workers itself, by which one sees that tasks ran there.
    """
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    compileall.compile_dir(folder, quiet=1, rx=re.compile(r"/spark/worker\.py$"))
    return folder


def install(build: Path, machine: Machine) -> None:
    """Give a machine a build in place of the one that it has; what runs goes on."""
    place = machine.folder / PACKAGES
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(build, place)


class Brokers(ABC):
    """What a job runs on."""

    #: The machines; the pairs have ``broker-a``, ``replica-a``, ``broker-b`` and ``replica-b``.
    machines: tuple[str, ...]
    #: Where the audit runs.
    watched_from = "master"
    #: Options of jobs.
    options: tuple[object, ...] = ()
    #: How long a driver's lease holds, s.
    lease = 60.0

    @abstractmethod
    def start(self, network: Network) -> str:
        """Start all on machines that are there; give the name servers."""


class OneBroker(Brokers):
    """An embedded broker."""

    machines = ("broker",)
    watched_from = "broker"
    #: A driver renews it every 20 s.
    lease = 30.0

    def start(self, network: Network) -> str:
        """Start it."""
        self._machine = network["broker"]
        self._serve()
        return _address(self._machine)

    def upgrade(self, build: Path) -> None:
        """Start it anew on its data, by another build."""
        self._serving.send(signal.SIGTERM)
        self._serving.end(_PATIENCE)
        install(build, self._machine)
        self._serve()

    def _serve(self) -> None:
        self._serving = _serve(self._machine, "--lock-expiry", f"{self.lease} s")


class Pairs(Brokers):
    """Two brokers, and a replica of each."""

    network: Network
    pairs = ("broker-a", "replica-a", "broker-b", "replica-b")
    machines: tuple[str, ...] = pairs

    def start(self, network: Network) -> str:
        """Start all, and wait until replicas follow."""
        self.network = network
        namesrv = self.serve_names()
        for name in self.machines:
            self.serve(name)
        return namesrv

    @abstractmethod
    def serve_names(self) -> str:
        """Start the name servers, where they are apart; give their addresses."""

    @abstractmethod
    def serve(self, name: str) -> None:
        """Start the broker of a machine, and wait until it is what it shall be."""

    @abstractmethod
    def go_on_without(self, name: str) -> None:
        """Do what an operator does when a machine with a broker that takes messages has ended."""

    def bring_back(self, name: str) -> None:
        """Boot a machine that has ended again, with its disk."""
        self.network.boot(name, folder=self.network[name].folder)
        self.serve(name)


class OwnPairs(Pairs):
    """Embedded brokers: the first pair are the name servers."""

    def __init__(self) -> None:
        self._primaries = {"a": "broker-a", "b": "broker-b"}

    def serve_names(self) -> str:
        """Name the first pair."""
        return ";".join(_address(self.network[name]) for name in ("broker-a", "replica-a"))

    def serve(self, name: str) -> None:
        """Start a primary, or what follows it."""
        pair, words = name[-1], ["--broker-name", f"broker-{name[-1]}"]
        primary = self.network[self._primaries[pair]]
        if pair != "a":
            for other in ("broker-a", "replica-a"):
                words += ["--register-with", _address(self.network[other])]
        if name == primary.name:
            _serve(primary, *words, "--min-replicas", 1)
            return
        _serve(self.network[name], *words, "--follow", _address(primary))
        await_true(f"{name} follows", lambda: self._follows(name), patience=_PATIENCE)

    def go_on_without(self, name: str) -> None:
        """Promote the follower."""
        pair = name[-1]
        assert name == self._primaries[pair]
        other = f"replica-{pair}" if name.startswith("broker") else f"broker-{pair}"
        self.network[other].run(
            *headrace("broker", "promote", _address(self.network[other])), env=environment()
        )
        self._primaries[pair] = other

    def _follows(self, name: str) -> bool:
        primary = self.network[self._primaries[name[-1]]]
        words = headrace("broker", "replicas", _address(primary))
        return self.network[name].address in primary.run(*words, env=environment())


class RocketPairs(Pairs):
    """RocketMQ's masters and slaves, and a name server apart."""

    machines = ("names", *Pairs.pairs)
    lease = 10.0
    options = ("--lease-expiry", f"{lease} s")

    def serve_names(self) -> str:
        """Start the name server."""
        self._script("names", "names", "rocketmq", _PORT)
        return _address(self.network["names"])

    def serve(self, name: str) -> None:
        """Start a master or a slave."""
        if name == "names":
            return
        address, pair = self.network[name].address, name[-1]
        settings = {
            "brokerName": f"broker-{pair}",
            "brokerIP1": address,
            "brokerIP2": address,
            "brokerId": int(name.startswith("replica")),
            "brokerRole": "SLAVE" if name.startswith("replica") else "SYNC_MASTER",
            "totalReplicas": 2,
            "inSyncReplicas": 2,
            "enableAutoInSyncReplicas": "true",
        }
        pairs = [f"{key}={value}" for key, value in settings.items()]
        names = _address(self.network["names"])
        self._script(name, "broker", "rocketmq", names, _STOCK_PORT, *pairs)

    def go_on_without(self, name: str) -> None:
        """Start the machine again: nobody else takes what its queues get."""
        self.bring_back(name)

    def _script(self, name: str, *words: object) -> None:
        lease = f"-Drocketmq.broker.rebalance.lockMaxLiveTime={int(self.lease * 1000)}"
        env = {"ROCKETMQ_CACHE": _JARS, "JAVA_TOOL_OPTIONS": f"{QUICK_JAVA} {lease}"}
        self.network[name].run(SCRIPT, *words, env=env, limit=_PATIENCE)


def _address(machine: Machine) -> str:
    return f"{machine.address}:{_PORT}"


def _serve(machine: Machine, *words: object) -> Running:
    place = ("--host", machine.address, "--port", _PORT, "--data", "broker-data", "--allow-anyone")
    serving = machine.start(*headrace("broker", *place, *words), env=environment())
    machine.await_port(_PORT, serving)
    return serving
