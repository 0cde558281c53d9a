"""What is around a whole run: a folder of its own, the parents of its processes, what it may leave.

A pytest plugin.  The process that runs the tests, or that hands them out, makes the folder and
looks at the end whether anything is left; each process that runs tests has a fork server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.run import forking, servers

#: Java that lives for a minute gains nothing by its second compiler.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

_around = pytest.StashKey[ExitStack]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make what the processes of this run share; start the parent of those of this one."""
    stack = config.stash[_around] = ExitStack()
    hands_out = bool(getattr(config.option, "numprocesses", None))
    if not hasattr(config, "workerinput"):
        stack.enter_context(_own_folder(config))
        os.environ["JAVA_TOOL_OPTIONS"] = _JAVA
        stack.enter_context(servers.life())
    if not hands_out and not config.option.collectonly:
        stack.enter_context(_quick_processes())


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End what was started for the run."""
    config.stash[_around].close()


@contextmanager
def _own_folder(config: pytest.Config) -> Iterator[None]:
    # Sockets have short names.
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    # PostgreSQL runs as a user of its own.
    folder.chmod(0o711)
    os.environ[servers.FOLDER] = str(folder)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _quick_processes() -> Iterator[None]:
    """Have processes forked that take long to start."""
    folder = Path(tempfile.mkdtemp(prefix="fork-", dir=os.environ[servers.FOLDER]))
    plain = subprocess.Popen
    with forking.fork_server(folder) as address:
        os.environ |= {
            forking.VARIABLE: str(address),
            "HEADRACE_TESTS_PYTHON": sys.executable,
            "PYSPARK_PYTHON": str(forking.fork_client(folder)),
        }
        subprocess.Popen = forking.ForkedPopen  # type: ignore[misc]
        try:
            yield
        finally:
            subprocess.Popen = plain  # type: ignore[misc]
