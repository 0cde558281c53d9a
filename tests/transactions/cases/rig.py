"""The rig of a case: a broker, messages, and drivers of a workload as processes.

A driver runs either by ``headrace run`` on Spark, or without Spark by :mod:`local`, which calls
the job's own source, stages and coordinator itself: the same engine, a tenth of the time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import psutil
import pyarrow as pa

from headrace.client import Admin, Client, Producer
from headrace.failpoints import ENVIRONMENT_VARIABLE
from headrace.topology import Topology
from tests.transactions.automaton import Call
from tests.transactions.cases import local, program
from tests.transactions.cases.evidence import Evidence, collect, read_history
from tests.transactions.cases.hooks import FLAW, VARIABLE, traces
from tests.transactions.cases.workloads import BATCH, WORKLOADS, Workload

__all__ = ["On", "Process", "Rig"]

On = Literal["local", "spark"]

#: Of the topics of results; the messages of a source are in one, so that their order is known.
QUEUES = 2
_PARTITIONS = 2
_PATIENCE = 180.0


@dataclass
class Process:
    """A driver of the workload."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        """What it printed."""
        return self.log.read_text(errors="replace")

    def wait(self, patience: float = _PATIENCE) -> int:
        """Wait for its end; its exit code."""
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"I8: no end after {patience:g} s:\n{self.said[-3000:]}") from None

    def await_killed(self) -> None:
        """Wait until the armed failpoint has killed it."""
        code = self.wait()
        assert code == -signal.SIGKILL, f"it ended with {code}:\n{self.said[-3000:]}"

    def await_done(self) -> None:
        """Wait until it has caught up and ended."""
        code = self.wait()
        assert code == 0, f"it ended with {code}:\n{self.said[-3000:]}"

    def await_stopped(self) -> None:
        """Wait until the armed failpoint has put it to sleep."""
        deadline = time.monotonic() + _PATIENCE
        while psutil.Process(self.process.pid).status() != psutil.STATUS_STOPPED:
            assert self.process.poll() is None, f"it ended:\n{self.said[-3000:]}"
            assert time.monotonic() < deadline, f"it never reached the failpoint:\n{self.said}"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self.process.wait()

    def kill_java(self) -> None:
        """End the Java process of its Spark as a crash would."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if child.name() == "java":
                child.kill()
                child.wait(10)

    def clean_up(self) -> None:
        """Kill what is left of it and of its children."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for child in family:
            with contextlib.suppress(psutil.Error):
                child.kill()


@dataclass
class Rig:
    """One case of one workload on one cluster.

    Parameters
    ----------
    workload
        Name of the workload.
    address
        The cluster.
    folder
        For everything that the processes write.
    on
        What the drivers run on.
    """

    workload: Workload
    address: str
    folder: Path
    on: On = "local"
    #: More of the topology's configuration.
    config: dict[str, Any] = field(default_factory=dict)
    #: More settings of the job.
    settings: dict[str, str] = field(default_factory=dict)
    #: Makes the drivers wrong in one way: see :mod:`broken`.
    broken: str = ""
    #: Ends the names of job and topics, so that many runs share a cluster.
    suffix: str = ""
    #: What is wrong with the workload's own code.
    flaw: str = ""
    #: Of a stock RocketMQ, the address of its broker; of an embedded broker, "".
    broker: str = ""
    #: Ids that must not be in the results.
    without: set[int] = field(default_factory=set)
    _processes: list[Process] = field(default_factory=list)
    _sent: int = 0
    _batches: int = 0

    def __enter__(self) -> Self:
        self._opened = ExitStack()
        self._client = self._opened.enter_context(Client(self.address))
        admin = Admin(self._client)
        if self.source:
            admin.create_topic(self.source, queues=1)
            admin.create_topic(self.sink, queues=QUEUES)
            admin.create_topic(self.dead_letters, queues=1)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.clean_up()
        self._opened.close()

    @property
    def on_rocketmq(self) -> bool:
        """Whether the cluster is a stock RocketMQ."""
        return bool(self.broker)

    @property
    def dead_letters(self) -> str:
        """Topic for the tuples that no bolt can handle."""
        return f"{self.workload.name}-dead{self.suffix}"

    @property
    def source(self) -> str:
        """The topic that the workload reads; "" for none."""
        return self.workload.source and self.workload.source + self.suffix

    @property
    def sink(self) -> str:
        """The topic that the workload writes; "" for none."""
        return self.workload.sink and self.workload.sink + self.suffix

    @property
    def topology(self) -> Topology:
        """What the workload's only group runs."""
        (group,) = self.workload.build(self.config, self.suffix).build().groups
        return group

    def send(self, batches: int) -> None:
        """Send messages that fill so many batches."""
        if not self.source:
            return
        (queue,) = self._client.queues(self.source, for_="write")
        first, self._sent = self._sent, self._sent + batches * BATCH
        rows = map(self.workload.message, range(first, self._sent))
        bodies = pa.array([msgspec.json.encode(row) for row in rows], pa.binary())
        Producer(self._client).send_columns(queue, bodies)

    def send_all(self, batches: int) -> None:
        """Send what is missing of the messages for so many batches."""
        self._batches = batches
        self.send(batches - self._sent // BATCH)

    def start(
        self, failpoints: str = "", *, address: str = "", last: int = 0, **settings: str
    ) -> Process:
        """Start a driver that ends when it has caught up, or has committed a batch."""
        log = self.folder / f"driver-{len(self._processes)}.log"
        environment = {
            **os.environ,
            ENVIRONMENT_VARIABLE: failpoints,
            VARIABLE: str(self.folder),
            FLAW: self.flaw,
            program.SUFFIX: self.suffix,
            program.WORKLOAD: self.workload.name,
            program.CONFIG: msgspec.json.encode(self.config).decode(),
            local.BROKEN: self.broken,
        }
        command = self._command(address or self.address, last, {**self.settings, **settings})
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
        self._processes.append(Process(process, log))
        return self._processes[-1]

    def _command(self, address: str, last: int, settings: Mapping[str, str]) -> Sequence[str]:
        given = {
            "namesrv": address,
            "data_dir": str(self.folder / "job"),
            "partitions": str(_PARTITIONS),
            "max_records_per_batch": str(BATCH),
            **settings,
        }
        if self.on == "local":
            options = [f"{name}={value}" for name, value in given.items()]
            return [sys.executable, "-m", local.__name__, str(last), *options]
        pairs = [(f"--{name.replace('_', '-')}", value) for name, value in given.items()]
        return [
            *(sys.executable, "-m", "headrace", "run", str(program.__file__), "--no-supervise"),
            *("--until-caught-up", "--master", "local[2,4]"),
            *(word for pair in pairs for word in pair),
        ]

    def finish(self, **settings: str) -> None:
        """Run a driver until it has caught up; a spout never has, so until it has done enough."""
        last = 0 if self.source else self._batches
        self.start(last=last, **settings).await_done()

    def finish_batch(self, batch: int, **settings: str) -> None:
        """Send what batches up to one need, and run a driver until it has committed them."""
        self.send(batch - self._sent // BATCH)
        self.start(last=batch, **settings).await_done()

    @property
    def tasks_per_batch(self) -> int:
        """How many tasks a batch has."""
        return 1 + _PARTITIONS * (len(self.topology.plan.stages) - 1)

    @property
    def epochs(self) -> int:
        """How many epochs were opened."""
        return sum(record.kind == "open" for record in read_history(self._client, self.topology))

    @property
    def calls(self) -> list[Call]:
        """The callbacks so far."""
        return list(traces(self.folder))

    def evidence(self) -> Evidence:
        """Read everything back."""
        found = collect(
            self.address, self.topology, self.workload, self.source, self.sink, self.folder
        )
        return dataclasses.replace(found, without=frozenset(self.without))


@contextlib.contextmanager
def rig(workload: str, address: str, folder: Path, **more: Any) -> Iterator[Rig]:
    """A rig for the time of a case."""
    with Rig(WORKLOADS[workload], address, folder, **more) as found:
        yield found
