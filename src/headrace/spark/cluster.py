"""What a job asks of a cluster (cores and timeouts) and ships to it (a Python and modules).

Spark starts workers with one command on all machines, and with the same command a planner on the
driver's machine.  If that command is a path inside an archive, which the driver does not unpack,
the driver's own Python stands in for it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tarfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client import Admin, Client
from headrace.client.settings import read_certificates
from headrace.errors import SettingsError
from headrace.protocol.codes import Perm
from headrace.protocol.routes import COMPACTED
from headrace.runtime.checks import brokers_of
from headrace.runtime.commit.journal.publishing import check_retention
from headrace.runtime.job_plan import JobConnection, JobPlan
from headrace.runtime.state.home import commits_units
from headrace.runtime.state.steps import other_partitions
from headrace.spark.statistics import PlanHandle, differing, own_versions, shown
from headrace.topology.names import journal_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext

    from headrace.runtime.state.interface import StoreFactory
    from headrace.settings import JobSettings
    from headrace.topology import Topology


_PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_VARIABLE = "PYSPARK_PYTHON"
#: Where executors find the archive of a job, and its Python.
_UNPACKED = "environment"
_PACKED_PYTHON = f"./{_UNPACKED}/bin/python"
#: How many heartbeats of an executor may be missing before it counts as lost.
_BEATS = 6
#: How long a machine of the cluster may take to accept a connection.
_CONNECTING = "5s"
#: How long a request may wait on a silent connection.  By default Spark hangs up after its network
#: timeout, and a master believes that a driver that hung up has ended, even if it was only cut off.
_SILENT = "600s"
#: Executors start with the first tasks, and stay.
_ON_DEMAND = {
    "enabled": "true",
    "shuffleTracking.enabled": "true",
    "minExecutors": "0",
    "initialExecutors": "0",
    "schedulerBacklogTimeout": "1s",
    "sustainedSchedulerBacklogTimeout": "1s",
    "executorIdleTimeout": "24h",
    "cachedExecutorIdleTimeout": "24h",
}


def cluster_config(settings: JobSettings) -> dict[str, str]:
    """Return Spark's settings for other machines: when one counts as lost, and how many cores."""
    silence = int(settings.worker_timeout.total_seconds() * 1000)
    beat = silence // _BEATS
    return {
        "spark.network.timeout": f"{silence}ms",
        # By default Spark looks once a minute, and needs up to three to notice a lost machine.
        "spark.network.timeoutInterval": f"{beat}ms",
        "spark.executor.heartbeatInterval": f"{beat}ms",
        # An executor whose driver does not answer ends, and frees its cores for others.
        "spark.executor.heartbeat.maxFailures": str(_BEATS),
        # A machine that is gone does not refuse connections, so each attempt waits for its timeout.
        "spark.rpc.io.connectionCreationTimeout": _CONNECTING,
        "spark.rpc.io.connectionTimeout": _SILENT,
        "spark.shuffle.io.connectionCreationTimeout": _CONNECTING,
        "spark.shuffle.io.maxRetries": "2",
        "spark.shuffle.io.retryWait": "1s",
        # Executors of a decommissioned worker end after their tasks, not together with the worker.
        "spark.decommission.enabled": "true",
        # There are never more tasks at a time; a standalone cluster would give all its cores.
        "spark.cores.max": str(settings.partitions),
    }


def is_cluster(master: str) -> bool:
    """Return whether tasks run in other processes than the driver's."""
    return not (master == "local" or master.startswith("local["))


def on_one_machine(master: str) -> bool:
    """Return whether tasks run on the driver's machine, in whichever process."""
    return master.startswith("local")


def holding_no_cores(settings: JobSettings) -> JobSettings:
    """Return settings with which a session takes a cluster's cores only when there is work.

    So a driver that stands by and the one that it waits for leave the cores to each other.
    """
    if not is_cluster(settings.master):
        return settings
    asked = {f"spark.dynamicAllocation.{name}": value for name, value in _ON_DEMAND.items()}
    return replace(settings, spark_config={**asked, **settings.spark_config})


@dataclass(frozen=True, slots=True)
class Shipment:
    """What a session ships to its executors.

    Attributes
    ----------
    python
        The command with which Spark starts workers on every machine.
    config
        Settings of Spark that ship the archive.
    py_files
        Further modules that workers import.
    """

    python: str
    config: Mapping[str, str]
    py_files: tuple[Path, ...]

    @classmethod
    def of(cls, settings: JobSettings) -> Shipment:
        """Return what settings tell a session to ship.

        Raises
        ------
        SettingsError
            A file to ship does not exist, or there is no executor to unpack an archive.
        """
        spark, archive = settings.spark_config, settings.archive
        for file in filter(None, [*settings.py_files, archive]):
            if not file.is_file():
                raise SettingsError(f"there is no file {file}, which is to be shipped to workers")
        config, python = {}, os.environ.get(_VARIABLE, sys.executable)
        if archive is not None:
            if not is_cluster(settings.master):
                raise SettingsError(
                    f"archive is {archive}, and master {settings.master}: workers in the driver's"
                    " own process have its Python",
                    hint="leave the archive out, or name a cluster as master",
                )
            _check_fits(archive)
            given = [spark[_ARCHIVES]] if _ARCHIVES in spark else []
            config[_ARCHIVES] = ",".join([*given, f"{archive.resolve()}#{_UNPACKED}"])
            python = _PACKED_PYTHON
        return cls(
            spark.get(_PYTHON, python), config, tuple(file.resolve() for file in settings.py_files)
        )

    @contextmanager
    def named(self) -> Iterator[None]:
        """Make a session that starts within the block use the command."""
        before = {name: os.environ.get(name) for name in (_VARIABLE, "PYSPARK_DRIVER_PYTHON")}
        os.environ[_VARIABLE] = self.python
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def stand_in(self, folder: Path) -> Path | None:
        """Put the driver's own Python where the command finds it on this machine.

        Return the folder that Spark's Java process must work in; None if the command works from
        every folder.
        """
        path = Path(self.python)
        if path.is_absolute() or path.name == self.python:
            return None
        script = folder / path
        script.parent.mkdir(parents=True, exist_ok=True)
        written = script.with_name(f"{script.name}-{os.getpid()}")
        # A link would start the environment's interpreter without the environment.
        written.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        written.chmod(0o700)
        written.replace(script)
        return folder

    def add_to(self, context: SparkContext) -> None:
        """Ship the modules to the executors of a session that has started."""
        for file in self.py_files:
            context.addPyFile(str(file))


def _check_fits(archive: Path) -> None:
    """Check that an archive was packed by versions that can read what this driver writes."""
    from headrace.packing.archive import MANIFEST

    try:
        with tarfile.open(archive) as packed:
            first = packed.next()
            if first is None or first.name != MANIFEST:
                # Another program made it; if something is missing, the workers will report it.
                return
            manifest = packed.extractfile(first)
            assert manifest is not None
            told = json.load(manifest)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise SettingsError(
            f"{archive} is not an archive of a job: {error}", hint="make it: headrace pack JOB.py"
        ) from None
    theirs = {"headrace": told["headrace"], "python": told["platform"]["python"]}
    if differ := differing(theirs):
        raise SettingsError(
            f"{archive} holds {shown(theirs, differ)}, but this driver runs"
            f" {shown(own_versions(), differ)}",
            hint="make it again: headrace pack JOB.py",
        )


# Before a job runs: connect, and make the job's own topics.


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a job needs to start, except an epoch."""

    connection: JobConnection
    handle: PlanHandle
    #: Writable queues of the topics that the job writes.
    queues: dict[str, list[str]]


def make_connection(
    topology: Topology,
    settings: JobSettings,
    namesrv: str,
    stores: StoreFactory | None = None,
) -> JobConnection:
    """Connect to the job's cluster, of whichever kind it is.

    Raises
    ------
    ConnectionFailedError
        No name server answers at the address.
    SettingsError
        The file of certificates does not exist, or holds none.
    """
    # Workers may have another working folder than the driver, and other files.
    ca, state = settings.tls_ca, settings.local_state
    if on_one_machine(settings.master):
        state = state.resolve()
    settings = replace(settings, state_dir=state, tls_ca=None)
    plan = JobPlan(
        topology.with_policy(settings.poison),
        settings,
        namesrv,
        embedded=True,
        stores=stores,
        tls_ca_data=None if ca is None else read_certificates(ca),
    )
    first = replace(plan.client_settings, connect_timeout=settings.connect_timeout)
    with Client(namesrv, first) as client:
        embedded = commits_units(client, plan.job)
    return JobConnection(replace(plan, embedded=embedded))


def prepare_topics(job: JobConnection) -> dict[str, list[str]]:
    """Make a job's own topics: for state, commits, and records that it reads a batch later.

    Return the writable queues of every sink and state topic, in order.

    Caller: the job, after the checks of :mod:`headrace.runtime.checks`.

    Raises
    ------
    PartitionCountError
        A state topic has fewer queues than the job has partitions.
    ConfigurationError
        A topic of the job's own loses its messages too soon.
    """
    plan, admin = job.plan, Admin(job.client)
    home = _home_broker(job)
    known = set(admin.topics())
    for topic, queues, attributes in _batch_topics(plan):
        if topic not in known:
            admin.create_topic(topic, queues=queues, attributes=attributes)
    found = {topic: _queues(job, topic) for topic in plan.sink_topics}
    for topic in plan.state_topics.values():
        if topic not in known:
            admin.create_topic(topic, plan.settings.partitions, attributes=COMPACTED, brokers=home)
        queues_of_state = _queues(job, topic)
        if len(queues_of_state) < plan.settings.partitions:
            raise other_partitions(plan.job, len(queues_of_state), plan.settings.partitions)
        # A job that was rescaled to fewer partitions leaves the other queues empty.
        found[topic] = queues_of_state[: plan.settings.partitions]
    _make_commit_topic(job, admin, home)
    if not plan.embedded:
        journal = journal_topic(plan.job)
        if journal not in known:
            admin.create_topic(journal, plan.settings.partitions, brokers=home)
        check_retention(job.client, plan.job, plan.state_topics.values(), plan.settings)
    job.expect_topics()
    return found


def _batch_topics(plan: JobPlan) -> Iterator[tuple[str, int, dict[str, str] | None]]:
    """Yield the topics that batches are read back from, with their queues and attributes."""
    for sink in plan.topology.batch_sinks:
        yield sink.topic, plan.settings.partitions, None
        yield sink.done_topic, 1, COMPACTED
    for through in plan.topology.throughs:
        yield through.topic, through.queues, None


def _queues(job: JobConnection, topic: str) -> list[str]:
    return [queue.name for queue in sorted(job.client.queues(topic, for_="write"))]


def _home_broker(job: JobConnection) -> list[str]:
    """Return the broker of a job's own topics: that of its commit topic, or one by the job's name.

    The order of a commit topic decides what is committed, so it has one queue, on one broker.
    """
    topic = job.plan.topology.commit_topic
    if brokers_of(job.client, topic):
        (queue, *_) = job.client.queues(topic)
        return [queue.broker]
    brokers = sorted(job.client.brokers())
    return [brokers[zlib.crc32(job.plan.job.encode()) % len(brokers)]]


def _make_commit_topic(job: JobConnection, admin: Admin, home: list[str]) -> None:
    """Make the commit topic on its broker, and reserve its name on all others.

    A name server forgets the topics of a broker that is away.  If the commit topic were then made
    anew on another broker, it would be empty, and the job would do everything a second time.
    """
    topic = job.plan.topology.commit_topic
    held = brokers_of(job.client, topic)
    if not held:
        admin.create_topic(topic, 1, attributes=COMPACTED, brokers=home)
    others = sorted({*job.client.brokers()} - held - {*home})
    if others:
        admin.create_topic(topic, 1, attributes=COMPACTED, brokers=others, perm=Perm(0))
