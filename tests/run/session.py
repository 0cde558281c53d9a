"""What is around a whole run: a folder of its own, the parents of its processes, what it may leave.

A pytest plugin.  The process that leads the run makes the folder, which all temporary files go to,
and at the end, also after Ctrl-C, ends what still runs, removes the folder, and fails the run where
tests left something: a process, a file in the checkout or in a folder of the machine.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.doctest import DoctestModule

from tests.run import forking, servers

if TYPE_CHECKING:
    from headrace.java import Java

#: Java that lives for a minute gains nothing by its second compiler.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_ROOT = Path(__file__).parents[2]
#: Where programs put files that are told of no folder, and by which names they are ours.
_MEMORY = Path("/dev/shm")
_PLACES = (Path("/tmp"), _MEMORY)
_OURS = ("headrace", "spark-", "pyspark", "blockmgr", "rocketmq", "pytest-of", "hsperfdata_")
#: Where RocketMQ's tool writes the bodies of the messages that it shows, whatever it is told.
_SHOWN = Path("/tmp/rocketmq")
_CACHES = ("__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache", ".venv")
_UNCLOSED = "unclosed"
_EXAMPLE = b">>>"
#: What processes may need to end by themselves, seconds.
_PATIENCE = 10.0

_around = pytest.StashKey[ExitStack]()
_leftovers = pytest.StashKey["Leftovers"]()


def quick_spark() -> str:
    """Give options of every Java of a Spark: a driver of ours finds the archive of classes itself."""
    from headrace.spark.class_archive import archive_options

    return f"{QUICK_JAVA} {archive_options(_java(), '')}".strip()


@cache
def _java() -> Java:
    from headrace.java import find_java

    return find_java()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make what the processes of this run share; start the parent of those of this one."""
    stack = config.stash[_around] = ExitStack()
    leads = not hasattr(config, "workerinput")
    if leads:
        config.stash[_leftovers] = Leftovers()
        stack.enter_context(_own_folder())
        stack.enter_context(servers.life())
    if not (leads and getattr(config.option, "numprocesses", None)):
        stack.enter_context(_quick_processes())


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """End what still runs, and look what is left.  The processes that ran tests have ended."""
    yield
    if _leftovers not in session.config.stash:
        return
    found = session.config.stash[_leftovers]
    with contextlib.suppress(FileNotFoundError):
        found.unclosed = (Path(os.environ[servers.FOLDER]) / _UNCLOSED).read_text().splitlines()
    session.config.stash[_around].close()
    found.look(Path(os.environ[servers.FOLDER]))
    if found.said and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(config: pytest.Config) -> None:
    """Name what is left."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    for line in config.stash[_leftovers].said:
        reporter.write_line(f"LEFT BEHIND: {line}")
    for line in config.stash[_leftovers].unclosed:
        reporter.write_line(f"DROPPED OPEN: {line}")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for examples in docstrings only where there are some: half of all files have none."""
    found = yield
    if _EXAMPLE in file_path.read_bytes():
        return found
    return [each for each in found if not isinstance(each, DoctestModule)]


def pytest_collection_finish() -> None:
    """Have nobody look for garbage in what all tests share: half a million objects, each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect what the tests of a file have dropped open: no other file is to be blamed for it."""
    same = nextitem is not None and nextitem.path == item.path
    if same or dict(item.user_properties).get("tier") == "pure":
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    if caught:
        with (Path(os.environ[servers.FOLDER]) / _UNCLOSED).open("a") as file:
            file.write(f"{len(caught)} after {item.path.relative_to(_ROOT)}\n")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End what was started for the run, where nothing else has done so."""
    config.stash[_around].close()


@contextmanager
def _own_folder() -> Iterator[None]:
    # Sockets have short names, and PostgreSQL runs as a user of its own.
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))
    folder.chmod(0o711)
    memory = (
        Path(tempfile.mkdtemp(prefix="hr-", dir=_MEMORY)) if os.access(_MEMORY, os.W_OK) else folder
    )
    os.environ |= {
        servers.FOLDER: str(folder),
        servers.MEMORY: str(memory),
        "TMPDIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "JAVA_TOOL_OPTIONS": (
            f"{QUICK_JAVA} -Djava.io.tmpdir={folder} -Dderby.stream.error.file={folder}/derby.log"
        ),
    }
    tempfile.tempdir = None
    try:
        yield
    finally:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        for each in (folder, memory):
            shutil.rmtree(each, ignore_errors=True)


@contextmanager
def _quick_processes() -> Iterator[None]:
    """Have processes forked that take long to start."""
    folder = Path(tempfile.mkdtemp(prefix="fork-", dir=os.environ[servers.FOLDER]))
    plain = subprocess.Popen
    with forking.fork_server(folder) as address:
        os.environ |= {
            forking.VARIABLE: str(address),
            "TESTS_PYTHON": sys.executable,
            "PYSPARK_PYTHON": str(forking.fork_client(folder)),
        }
        subprocess.Popen = forking.ForkedPopen  # type: ignore[misc]
        try:
            yield
        finally:
            subprocess.Popen = plain  # type: ignore[misc]


def _untracked() -> set[str]:
    """Name what is in the checkout and not in the repository, but for caches."""
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["git", "status", "--porcelain", "--ignored", "--untracked-files=all"],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        paths = {line[3:] for line in done.stdout.splitlines() if line[:2] in ("??", "!!")}
        return {path for path in paths if not any(name in path for name in _CACHES)}
    return set()


def _files_of_ours() -> set[Path]:
    found = {path for place in _PLACES for path in place.glob("*") if path.name.startswith(_OURS)}
    return {path for path in found if not _is_in_use(path.name)}


def _is_in_use(name: str) -> bool:
    """Whether a folder is that of a process which lives, as those of another run may."""
    words = name.split("-")
    return len(words) > 1 and words[1].isdecimal() and Path("/proc", words[1]).exists()


@dataclass(eq=False, slots=True)
class Leftovers:
    """What was there before the run, and what is there after it that was not."""

    checkout: set[str] = field(default_factory=_untracked)
    machine: set[Path] = field(default_factory=_files_of_ours)
    said: list[str] = field(default_factory=list)
    #: How many files and sockets were dropped open, by the tests of which file.
    unclosed: list[str] = field(default_factory=list)

    def look(self, folder: Path) -> None:
        """Note what is left, and end the processes."""
        mark = f"{servers.FOLDER}={folder}".encode()
        deadline = time.monotonic() + _PATIENCE
        while (found := _processes(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid, text in found.items():
            self.said.append(f"process {pid}: {text}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A Java of Spark's that ended meanwhile makes its folders anew to clear them up.
        shutil.rmtree(folder, ignore_errors=True)
        self.said += [f"in the checkout: {path}" for path in sorted(_untracked() - self.checkout)]
        self.said += [str(folder)] if folder.exists() else []
        if _SHOWN not in self.machine:
            shutil.rmtree(_SHOWN, ignore_errors=True)
        if left := _files_of_ours() - self.machine:
            # A driver that is killed leaves its checkpoint to the next one: there is no next one.
            from headrace.spark.session import scratch_folder, sweep_scratch

            sweep_scratch(scratch_folder())
            self.said += [str(path) for path in sorted(left) if path.exists()]


def _processes(mark: bytes) -> dict[int, str]:
    """Find the processes that were started for a run: their command lines, and by which tests."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            if mark in variables and int(entry.name) != os.getpid() and command:
                test = next((one for one in variables if one.startswith(b"PYTEST_CURRENT")), b"")
                started = test.partition(b"=")[2].decode() or "no test"
                age = time.time() - entry.stat().st_mtime
                found[int(entry.name)] = f"{command[:200]} ({age:.0f} s old, of {started})"
    return found
