"""What a job asks of a cluster and brings to its machines: cores, patience, a Python, modules.

Spark starts workers by one command on all machines.  It also has a planner on the driver's
machine, by the same command: where that is a path below an archive, which the driver does not
unpack, the driver's own Python stands in for it.
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

from headrace.errors import SettingsError
from headrace.spark.plans import differing, own_versions, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext

    from headrace.settings import JobSettings

__all__ = ["Shipment", "cluster_config", "holding_no_cores", "is_cluster", "on_one_machine"]

_PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_VARIABLE = "PYSPARK_PYTHON"
#: Where executors find the archive of a job, and its Python.
_UNPACKED = "environment"
_PACKED_PYTHON = f"./{_UNPACKED}/bin/python"
#: How often an executor is heard of before it counts as lost.
_BEATS = 6
#: How long a machine of the cluster may take to accept a connection.
_CONNECTING = "5s"
#: Executors come with the first tasks, and stay.
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
    """Set what concerns other machines: when one counts as lost, and how much the job takes."""
    silence = int(settings.worker_timeout.total_seconds() * 1000)
    beat = silence // _BEATS
    return {
        "spark.network.timeout": f"{silence}ms",
        # Spark looks every minute by default, so that a lost machine costs up to three.
        "spark.network.timeoutInterval": f"{beat}ms",
        "spark.executor.heartbeatInterval": f"{beat}ms",
        # An executor that its driver does not hear ends, and gives its cores to others.
        "spark.executor.heartbeat.maxFailures": str(_BEATS),
        # A machine that is gone refuses nothing: each try of a connection waits to its end.
        "spark.rpc.io.connectionCreationTimeout": _CONNECTING,
        "spark.shuffle.io.connectionCreationTimeout": _CONNECTING,
        "spark.shuffle.io.maxRetries": "2",
        "spark.shuffle.io.retryWait": "1s",
        # Executors of a worker that is decommissioned end when their tasks have, not with the worker.
        "spark.decommission.enabled": "true",
        # More tasks there never are at a time; a standalone cluster gives all that it has.
        "spark.cores.max": str(settings.partitions),
    }


def is_cluster(master: str) -> bool:
    """Tell whether tasks run in other processes than the driver's."""
    return not (master == "local" or master.startswith("local["))


def on_one_machine(master: str) -> bool:
    """Tell whether tasks run on the driver's machine, in whichever process."""
    return master.startswith("local")


def holding_no_cores(settings: JobSettings) -> JobSettings:
    """Return settings by which a session takes a cluster's cores when there is work, not before.

    Drivers that stand by, and the one that they wait for, leave them to each other.
    """
    if not is_cluster(settings.master):
        return settings
    asked = {f"spark.dynamicAllocation.{name}": value for name, value in _ON_DEMAND.items()}
    return replace(settings, spark_config={**asked, **settings.spark_config})


@dataclass(frozen=True, slots=True)
class Shipment:
    """What a session brings to its executors.

    Attributes
    ----------
    python
        The command by which Spark starts workers, on whichever machine.
    config
        Settings of Spark that bring the archive.
    py_files
        Modules that workers import besides.
    """

    python: str
    config: Mapping[str, str]
    py_files: tuple[Path, ...]

    @classmethod
    def of(cls, settings: JobSettings) -> Shipment:
        """Find out what settings ask for.

        Raises
        ------
        SettingsError
            A file that is to be shipped is not there, or nobody would unpack it.
        """
        spark, archive = settings.spark_config, settings.archive
        for file in filter(None, [*settings.py_files, archive]):
            if not file.is_file():
                raise SettingsError(f"there is no file {file}, which workers are to get")
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
        """Have a session that starts meanwhile use the command."""
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

        Gives the folder that Spark's Java process must work in; None where the command is found
        from everywhere.
        """
        path = Path(self.python)
        if path.is_absolute() or path.name == self.python:
            return None
        script = folder / path
        script.parent.mkdir(parents=True, exist_ok=True)
        written = script.with_name(f"{script.name}-{os.getpid()}")
        # A link would lead to the interpreter of an environment, without the environment.
        written.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        written.chmod(0o700)
        written.replace(script)
        return folder

    def add_to(self, context: SparkContext) -> None:
        """Bring the modules to the executors of a session that has started."""
        for file in self.py_files:
            context.addPyFile(str(file))


def _check_fits(archive: Path) -> None:
    """See that an archive was packed by versions that read what this driver writes."""
    from headrace.packing.contents import MANIFEST

    try:
        with tarfile.open(archive) as packed:
            first = packed.next()
            if first is None or first.name != MANIFEST:
                # Made by something else: what lacks is told by the workers.
                return
            manifest = packed.extractfile(first)
            assert manifest is not None
            told = json.load(manifest)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise SettingsError(
            f"{archive} is no archive of a job: {error}", hint="make it: headrace pack JOB.py"
        ) from None
    theirs = {"headrace": told["headrace"], "python": told["platform"]["python"]}
    if differ := differing(theirs):
        raise SettingsError(
            f"{archive} holds {shown(theirs, differ)}, and this driver runs"
            f" {shown(own_versions(), differ)}",
            hint="make it anew: headrace pack JOB.py",
        )
