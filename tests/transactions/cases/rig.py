"""The rig of a case: a broker, messages, and drivers of a workload as processes.

A driver runs either on Spark, in a session that :mod:`hosts` lends, or without Spark by :mod:`local`,
which calls the job's own source, stages and coordinator itself: the same engine, a tenth of the
time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil
import pyarrow as pa

from headrace.client import Admin, Client, Producer
from headrace.failpoints import ENVIRONMENT_VARIABLE, read_hits
from headrace.protocol.transactions import CommitRecord
from headrace.topology import Topology
from headrace.topology.operators.core import Source
from headrace.transactions import TransactionTopology
from tests.run.forking import descendants
from tests.transactions.automaton import Call
from tests.transactions.cases import local, program
from tests.transactions.cases.case import On
from tests.transactions.cases.evidence import Evidence, collect, read_history
from tests.transactions.cases.hooks import BROKEN, FLAW, VARIABLE, traces
from tests.transactions.cases.hosts import HOSTS, HostedDriver
from tests.transactions.cases.spark import Order
from tests.transactions.cases.workload import BATCH, FIRST, Workload
from tests.transactions.cases.workloads import WORKLOADS

__all__ = ["Process", "Rig"]

#: Of the topics of results; the messages of a source are in one, so that their order is known.
QUEUES = 2
_PARTITIONS = 2
_PATIENCE = 180.0


@dataclass
class Process:
    """A driver of the workload."""

    process: subprocess.Popen[bytes] | HostedDriver
    log: Path
    #: Where hits of failpoints are counted, if they are counted together.
    points: Path | None = None

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
        family = descendants(self.process.pid)
        # Executors are Java, too, and end without the first one by themselves.
        for java in [child for child in family if child.name() == "java"]:
            with contextlib.suppress(psutil.NoSuchProcess):
                java.kill()
                java.wait(10)

    def times_hit(self, failpoint: str) -> int:
        """Tell how often its processes have come to a failpoint."""
        assert self.points is not None, "each process counts for itself"
        return len(read_hits(self.points).get(failpoint, ()))

    def clean_up(self) -> None:
        """Kill what is left of it and of its children."""
        if isinstance(self.process, HostedDriver):
            self.process.release()
            return
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            family = descendants(self.process.pid)
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
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    #: How many messages each source got.
    _sent: Counter[int] = field(default_factory=Counter)
    _batches: int = 0

    def __enter__(self) -> Self:
        self._opened = ExitStack()
        self._client = self._opened.enter_context(Client(self.address))
        admin = Admin(self._client)
        for source in self.sources:
            admin.create_topic(source, queues=1)
        if self.sink:
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
    def sources(self) -> list[str]:
        """The topics that the workload reads."""
        return [source + self.suffix for source in self.workload.sources]

    @property
    def sink(self) -> str:
        """The topic that the workload writes; "" for none."""
        return self.workload.sink and self.workload.sink + self.suffix

    @property
    def built(self) -> TransactionTopology:
        """The workload's topology."""
        return self.workload.build(self.config, self.suffix).build()

    @property
    def topology(self) -> Topology:
        """What the workload's only group runs."""
        (group,) = self.built.groups
        return group

    def send(self, batches: int) -> None:
        """Send messages that fill so many batches of each source."""
        for kind in range(len(self.sources)):
            self.send_to(kind, batches)

    def send_to(self, kind: int, batches: int) -> None:
        """Send messages that fill so many batches of one source."""
        (queue,) = self._client.queues(self.sources[kind], for_="write")
        first = kind * FIRST + self._sent[kind]
        self._sent[kind] += batches * BATCH
        rows = map(self.workload.message, range(first, kind * FIRST + self._sent[kind]))
        bodies = pa.array([msgspec.json.encode(row) for row in rows], pa.binary())
        Producer(self._client).send_columns(queue, bodies)

    def send_all(self, batches: int) -> None:
        """Send what is missing of the messages for so many batches."""
        self._batches = batches
        for kind in range(len(self.sources)):
            self.send_to(kind, batches - self._sent[kind] // BATCH)

    def start(
        self, failpoints: str = "", *, address: str = "", last: int = 0, **settings: str
    ) -> Process:
        """Start a driver that ends when it has caught up, or has committed a batch."""
        given = {
            "namesrv": address or self.address,
            "data_dir": str(self.folder / "job"),
            "partitions": str(_PARTITIONS),
            "max_records_per_batch": str(BATCH),
            **self.settings,
            **settings,
        }
        start = self._start_local if self.on == "local" else self._start_on_spark
        self._processes.append(start(failpoints, last, given))
        return self._processes[-1]

    def _start_local(self, failpoints: str, last: int, settings: Mapping[str, str]) -> Process:
        log = self.folder / f"driver-{next(self._numbers)}.log"
        environment = {
            **os.environ,
            ENVIRONMENT_VARIABLE: failpoints,
            VARIABLE: str(self.folder),
            FLAW: self.flaw,
            BROKEN: self.broken,
            program.SUFFIX: self.suffix,
            program.WORKLOAD: self.workload.name,
            program.CONFIG: msgspec.json.encode(self.config).decode(),
        }
        options = [f"{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", local.__name__, str(last), *options]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
        return Process(process, log)

    def _start_on_spark(self, failpoints: str, last: int, settings: Mapping[str, str]) -> Process:
        name = str(self.folder / f"driver-{next(self._numbers)}")
        order = Order(
            workload=self.workload.name,
            suffix=self.suffix,
            config=self.config,
            settings=dict(settings),
            failpoints=failpoints,
            last=last,
            folder=str(self.folder),
            points=f"{name}.points",
            log=f"{name}.log",
            answer=f"{name}.code",
        )
        Path(order.log).touch()
        self._release_ended()
        environment = {FLAW: self.flaw, BROKEN: self.broken}
        driver = HOSTS.take(self.on, environment).run(order)
        if failpoints:
            # This one is to be killed, or to sleep: another one comes next.
            HOSTS.make_ready(self.on, environment)
        return Process(driver, Path(order.log), Path(order.points))

    def _release_ended(self) -> None:
        """Let the next driver have the session of the last one."""
        for process in list(self._processes):
            if process.process.poll() is not None:
                self._processes.remove(process)
                process.clean_up()

    def finish(self, **settings: str) -> None:
        """Run a driver until it has caught up; a spout never has, so until it has done enough."""
        last = 0 if self.sources else self._batches
        self.start(last=last, **settings).await_done()

    def finish_batch(self, batch: int, **settings: str) -> None:
        """Send what batches up to one need, and run a driver until it has committed them."""
        self.send(batch - self._sent[0] // BATCH)
        self.start(last=batch, **settings).await_done()

    @property
    def epochs(self) -> int:
        """How many epochs were opened."""
        return sum(record.kind == "open" for record in self.history_of(self.topology))

    def history_of(self, group: Topology) -> list[CommitRecord]:
        """Give the records of a group's commit topic."""
        return read_history(self._client, group)

    @property
    def calls(self) -> list[Call]:
        """The callbacks so far."""
        return list(traces(self.folder))

    def evidence(self) -> Evidence:
        """Read everything of the only group back."""
        (found,) = self.evidences()
        return found

    def evidences(self) -> list[Evidence]:
        """Read everything back, group by group."""
        return [self._evidence_of(group) for group in self.built.groups]

    def _evidence_of(self, group: Topology) -> Evidence:
        read = {operator.topic for operator in group.operators if isinstance(operator, Source)}
        kinds = {kind for kind, source in enumerate(self.sources) if source in read}
        own = {operator.name for operator in group.operators}
        found = collect(
            self.address,
            group,
            self.workload,
            [self.sources[kind] for kind in kinds],
            self.sink,
            self.folder,
        )
        return dataclasses.replace(
            found,
            results=[row for row in found.results if row["id"] // FIRST in kinds],
            calls=[call for call in found.calls if call.task[0] in own],
            without=frozenset(self.without),
        )


@contextlib.contextmanager
def rig(workload: str, address: str, folder: Path, **more: Any) -> Iterator[Rig]:
    """A rig for the time of a case."""
    with Rig(WORKLOADS[workload], address, folder, **more) as found:
        yield found
