"""What a job brings to the machines of a cluster: a Python, modules, and the command to run them.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import SettingsError
from headrace.packing.contents import MANIFEST
from headrace.spark.plans import differing, own_versions, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark import SparkContext

    from headrace.settings import JobSettings

__all__ = ["Shipment"]

_PYTHON = "spark.pyspark.python"
_ARCHIVES = "spark.archives"
_VARIABLE = "PYSPARK_PYTHON"
#: Where executors find the archive of a job, and its Python.
_UNPACKED = "environment"
_PACKED_PYTHON = f"./{_UNPACKED}/bin/python"


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
        for file in (*settings.py_files, *([] if archive is None else [archive])):
            if not file.is_file():
                raise SettingsError(f"there is no file {file}, which workers are to get")
        config = {}
        python = spark.get(_PYTHON, os.environ.get(_VARIABLE, sys.executable))
        if archive is not None:
            if settings.master.startswith("local["):
                raise SettingsError(
                    f"archive is {archive}, and master {settings.master}: workers in the driver's"
                    " own process have its Python",
                    hint="leave the archive out, or name a cluster as master",
                )
            _check_fits(archive)
            given = [spark[_ARCHIVES]] if _ARCHIVES in spark else []
            config[_ARCHIVES] = ",".join([*given, f"{archive.resolve()}#{_UNPACKED}"])
            python = spark.get(_PYTHON, _PACKED_PYTHON)
        return cls(python, config, tuple(file.resolve() for file in settings.py_files))

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
