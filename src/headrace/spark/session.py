"""The Spark session in which jobs run."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headrace.errors import JavaEndedError, JobFailedError, SettingsError
from headrace.java import use_java
from headrace.settings import usable_cores
from headrace.spark.class_archive import JAVA_OPTIONS, archive_options
from headrace.spark.cluster import Shipment, cluster_config, is_cluster, on_one_machine
from headrace.spark.dead_session import forget_dead_session
from headrace.spark.family import MARK, family_mark, start_reaper
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from py4j.java_gateway import JavaGateway

    from headrace.settings import JobSettings


# A check for the master of a standalone cluster; Spark itself takes a minute to find none.

#: Seconds between two looks for a master that is starting.
_PAUSE = 0.2
#: A file that no master has.
_NAME = b"/jars/headrace"
#: A frame of Spark's transport: its length, its type, and the name of the requested file.  A file
#: can be requested without a secret.
_HEAD, _STREAM_REQUEST, _STREAM_ANSWERS = struct.Struct(">qb"), 6, (7, 8)
_REQUEST = _HEAD.pack(_HEAD.size + 4 + len(_NAME), _STREAM_REQUEST) + struct.pack(
    f">i{len(_NAME)}s", len(_NAME), _NAME
)


def find_master(master: str, timeout: timedelta, patience: timedelta = timedelta(0)) -> None:
    """Wait until one of the masters answers as Spark's transport does.

    Parameters
    ----------
    master
        A master in Spark's form, ``spark://HOST:PORT,HOST:PORT``; others are not waited for.
    timeout
        How long each of them may take to answer.
    patience
        How long to wait for one that does not listen yet.

    Raises
    ------
    OSError
        None answers; the message says what each does instead.
    """
    if not master.startswith("spark://"):
        return
    until = time.monotonic() + patience.total_seconds()
    while failures := _failures(master.removeprefix("spark://").split(","), timeout):
        starts = any(isinstance(error, ConnectionRefusedError) for error in failures.values())
        if not starts or time.monotonic() >= until:
            told = ", ".join(f"{place} ({error})" for place, error in failures.items())
            raise OSError(f"no master answers at {told}")
        time.sleep(_PAUSE)


def _failures(places: list[str], timeout: timedelta) -> dict[str, Exception]:
    """Ask each in turn until one answers; return the errors of all, empty if one does."""
    failures: dict[str, Exception] = {}
    for place in places:
        host, _, port = place.rpartition(":")
        try:
            _ask((host.strip("[]"), int(port)), timeout.total_seconds())
        except (OSError, ValueError) as error:
            failures[place] = error
        else:
            return {}
    return failures


def _ask(address: tuple[str, int], wait: float) -> None:
    with socket.create_connection(address, wait) as connection:
        connection.sendall(_REQUEST)
        try:
            head = connection.makefile("rb").read(_HEAD.size)
        except ConnectionResetError:
            head = b""
        except TimeoutError:
            raise OSError(f"it accepts connections, but has sent nothing for {wait:g} s") from None
    if len(head) == _HEAD.size and _HEAD.unpack(head)[1] in _STREAM_ANSWERS:
        return
    # With spark.ssl.rpc.enabled a master hangs up on whoever does not encrypt.
    if not _speaks_tls(address, wait):
        raise OSError("something other than a Spark master is there")


def _speaks_tls(address: tuple[str, int], wait: float) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(address, wait) as connection:
            context.wrap_socket(connection).close()
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True


# Starting Spark's Java process, and keeping two kinds of noise off the terminal.
#
# All other output of Java and Spark's Python workers is shown, also a user's own ``print``.  The
# noise is Java's warning about incubator modules, and the traceback that a worker prints when Spark
# closes its connection because it was idle for a minute.

_TRACEBACK = "Traceback (most recent call last):\n"
_INCUBATOR = "WARNING: Using incubator modules"
#: Spark's default pattern for the names of secrets.
_REDACTED = "(?i)secret|password|token|access[.]?key|credential"
#: The source line below a frame of the daemon, if Python has its source, and the marks below it.
_SOURCE_LINE = re.compile(r"    +(code = worker\(|outfile\.flush\(|[~^]+\s*$)")
_BROKEN_PIPE = "BrokenPipeError: [Errno 32] Broken pipe\n"


def launch_quietly(conf: SparkConf, folder: Path | None = None) -> JavaGateway:
    """Start the Java process of a session; it and its Python workers end with this process.

    Parameters
    ----------
    conf
        Settings of the session.  Secrets among them do not go onto the command line of the process,
        so the session must pass them on itself.
    folder
        The working folder of the process; by default that of this process.
    """
    conf.set(f"spark.executorEnv.{MARK}", family_mark())
    start_reaper()
    shown = SparkConf(loadDefaults=False).setAll(shown_settings(conf))
    streams = {"stderr": subprocess.PIPE, "cwd": folder}
    gateway = launch_gateway(shown, streams)  # type: ignore[no-untyped-call]
    errors: IO[bytes] = gateway.proc.stderr
    watched_thread(
        partial(_forward, errors),
        name="headrace-spark-stderr",
        # If nobody read its output, Java would wait for ever.
        on_failure=lambda _error: errors.close(),
    ).start()
    return gateway


def shown_settings(conf: SparkConf) -> list[tuple[str, str]]:
    """Return the settings without those that Spark hides on its pages, by their names."""
    hidden = re.compile(conf.get("spark.redaction.regex", _REDACTED))
    return [(name, value) for name, value in conf.getAll() if not hidden.search(name)]


def _forward(stream: IO[bytes]) -> None:
    noise = NoiseFilter()
    for line in stream:
        sys.stderr.write(noise.feed(line.decode(errors="replace")))
        sys.stderr.flush()


class NoiseFilter:
    r"""Filters noise from lines of output.

    Several workers may print at once, so their tracebacks may be interleaved.

    Examples
    --------
    >>> noise = NoiseFilter()
    >>> noise.feed("Traceback (most recent call last):\n")
    ''
    >>> noise.feed('  File "user.py", line 1, in <module>\n')
    'Traceback (most recent call last):\n  File "user.py", line 1, in <module>\n'
    """

    def __init__(self) -> None:
        self._held = ""
        self._begun = 0

    def feed(self, line: str) -> str:
        """Return the line with what was held back before it, or an empty text."""
        if line == _TRACEBACK:
            self._held += line
            self._begun += 1
            return ""
        if line.startswith(_INCUBATOR):
            return ""
        if self._begun and ("pyspark/daemon.py" in line or _SOURCE_LINE.match(line)):
            self._held += line
            return ""
        if self._begun and line == _BROKEN_PIPE:
            self._begun -= 1
            if not self._begun:
                self._held = ""
            return ""
        shown, self._held, self._begun = self._held + line, "", 0
        return shown


# Local files of Spark, written without starting processes.
#
# Spark records the beginning and end of every batch in a folder of its own.  Without its native
# library, Hadoop's class for local files sets permissions with the program ``chmod``, which takes
# four processes a batch.  Java has a call for that.

logger = logging.getLogger(__name__)

_IMPLEMENTATION = "fs.file.impl"
_CLASS = "headrace.LocalFiles"
_SOURCE = """
package headrace;

import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new Raw());
    }

    public static class Raw extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission given) throws java.io.IOException {
            if (given.getStickyBit()) {
                super.setPermission(path, given);
            } else {
                Files.setPosixFilePermissions(
                    pathToFile(path).toPath(), PosixFilePermissions.fromString(given.toString()));
            }
        }
    }
}
"""


def write_without_processes(context: SparkContext) -> None:
    """Let Java itself set the permissions of local files if Hadoop would start a program for that.

    A class that the user configured is kept.

    Caller: right after the start of Spark, while no files are open through Hadoop's class.
    """
    java: Any = context._jvm  # noqa: SLF001 - PySpark has no interface for it
    try:
        if java.org.apache.hadoop.io.nativeio.NativeIO.isAvailable():
            return
        conf = java.org.apache.hadoop.conf.Configuration(context._jsc.hadoopConfiguration())  # noqa: SLF001
        if conf.get(_IMPLEMENTATION) is not None:
            return
        # Spark compiles its own plans with the same compiler.
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(java.Thread.currentThread().getContextClassLoader())
        compiler.cook(_SOURCE)
        conf.setClassLoader(compiler.getClassLoader())
        conf.set(_IMPLEMENTATION, _CLASS)
        # Hadoop caches one instance per process, the first that is made.
        files, place = java.org.apache.hadoop.fs.FileSystem, java.java.net.URI("file:///")
        files.get(place, conf).close()
        files.get(place, conf)
    except (Py4JError, TypeError) as error:
        # Another Spark may lack these classes; then its files only take longer.
        logger.info("Spark sets the permissions of local files by chmod: %s", error)


#: Jobs that share a session may all find that its Java process has ended.
_starting = threading.Lock()
#: Whether Spark has run in this process.
_has_run = False
#: The session with the settings that it last got.  Otherwise each thread that asks for a session
#: would set all of them again, with some three hundred calls into Java.
_told: tuple[SparkSession, object] | None = None
#: When the start that is under way began, by the monotonic clock.
_began: float | None = None
#: How long a start may take on a busy machine, s.
_LONGEST_START = 120.0

#: Spark's message about a context that it stopped because no master answered.
_STOPPED = "Cannot call methods on a stopped SparkContext"
_MASTER = re.compile(r"local(-cluster)?(\[.*\])?$|spark://|yarn$|k8s://")
_LOCAL = re.compile(r"local\[(\d+|\*)(,\s*\d+)?\]")
#: Slots of a local master for a job's own data frames, and for a second job.
_SPARE_SLOTS = 4
_SECRET = "spark.authenticate.secret"  # noqa: S105 - a name
_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"

#: Comments give the reasons; all settings were measured (docs/explanation/performance.md).
SPARK_CONFIG: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    # A loopback connection waits up to 40 ms for an acknowledgement, in every task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # We never read Spark's own log of batches, so it needs no file manager that starts processes.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    # A stage has one row per block, so looking at sizes between stages gains nothing.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.speculation": "false",
    # Queries of sink_dataframe's writers take turns with the job, and do not go before it.
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    # How often a gang of resident tasks looks for slots, where an executor was lost.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    # Workers are forked with everything imported, so a new one starts in milliseconds.
    "spark.python.daemon.module": "headrace.spark.daemon",
    "spark.driver.memory": "1g",
}


def get_session(settings: JobSettings, name: str = "headrace") -> SparkSession:
    """Return the running session, or start one; the user's settings override Headrace's.

    Parameters
    ----------
    settings
        Where and how to run.
    name
        The name of the application on a cluster's pages, if one is started.

    Raises
    ------
    JavaNotFoundError
        There is no Java 17 or newer.
    SettingsError
        Spark does not know a master of this form.
    JobFailedError
        Spark did not start, for example because its master does not answer.
    JavaEndedError
        Spark did not start but has run in this process before, so a retry may help.
    """
    global _told
    forget_dead_session()
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    told = settings.master, settings.data_dir, dict(settings.spark_config)
    session = SparkSession._instantiatedSession  # noqa: SLF001 - Spark offers no other look
    if session is not None and _has_been_told(session, told):
        return session
    shipment = Shipment.of(settings)
    conf = SparkConf().setAppName(name).setMaster(_master(settings))
    conf.setAll([*_config(settings).items(), *shipment.config.items()])
    with _starting:
        if SparkContext._active_spark_context is None:  # noqa: SLF001 - Spark offers no other look
            java = use_java()
            options = conf.get(JAVA_OPTIONS, "")
            conf.set(JAVA_OPTIONS, f"{archive_options(java, options)} {options}".strip())
            _start(conf, settings, shipment)
        with _failures_told(settings):
            session = SparkSession.builder.config(conf=conf).getOrCreate()
        _told = session, told
        return session


def _master(settings: JobSettings) -> str:
    """Return the master; a local one with slots beside those that resident tasks keep."""
    found = _LOCAL.fullmatch(settings.master)
    if settings.executor != "resident" or found is None:
        return settings.master
    cores = usable_cores() if found[1] == "*" else int(found[1])
    return f"local[{cores + _SPARE_SLOTS}{found[2] or ''}]"


def _has_been_told(session: SparkSession, told: object) -> bool:
    """Return whether a session is alive and these settings were the last that it got."""
    return (session, told) == _told and session.sparkContext._jsc is not None  # noqa: SLF001


def check_master(settings: JobSettings) -> None:
    """Check that Spark knows the master, and that the master of a standalone cluster answers.

    Raises
    ------
    SettingsError
        Spark does not know a master of this form.
    JobFailedError
        None of the named masters answers within ``connect_timeout``.
    JavaEndedError
        The same, but Spark has run in this process before.
    """
    if not _MASTER.match(settings.master):
        raise SettingsError(
            f"master is '{settings.master}', which Spark does not know",
            hint="give local[N], spark://HOST:PORT, yarn or k8s://URL",
        )
    with _failures_told(settings):
        # A master that was started a moment ago may not listen yet.
        find_master(settings.master, settings.connect_timeout, 2 * settings.connect_timeout)


def overdue() -> float:
    """Return by how many seconds a start of Spark takes longer than any should, or 0.

    Java may be killed at any moment of its start, and not every call of Spark notices that.
    """
    began = _began
    return 0.0 if began is None else max(0.0, time.monotonic() - began - _LONGEST_START)


def _start(conf: SparkConf, settings: JobSettings, shipment: Shipment) -> None:
    global _has_run, _began
    _began = time.monotonic()
    try:
        check_master(settings)
        with _failures_told(settings):
            home = shipment.stand_in((settings.data_dir / "planner").resolve())
            if home is not None:
                # Relative paths of the user must still mean the same files.
                conf.set(JAVA_OPTIONS, f'{conf.get(JAVA_OPTIONS)} "-Duser.dir={Path.cwd()}"')
            with shipment.named():
                context = SparkContext(conf=conf, gateway=launch_quietly(conf, home))
            shipment.add_to(context)
            write_without_processes(context)
        _has_run = True
    finally:
        _began = None


@contextmanager
def _failures_told(settings: JobSettings) -> Iterator[None]:
    """Raise the reason why Spark does not start as an error of one line."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        java = getattr(error, "java_exception", None)
        why = str(error if java is None else java.toString()).partition("\n")[0]
        if _STOPPED in why:
            why = (
                "its master has not answered for a minute, has no room for applications, or has"
                f" a different {_SECRET}"
            )
        log = log_file(settings)
        told = f"see {log}; " if log.exists() else ""
        # Spark has run with these settings, so they are right and its Java was killed at the start.
        failure = JavaEndedError if _has_run else JobFailedError
        raise failure(
            f"Spark did not start on {settings.master}: {why}",
            hint=f"{told}a cluster's master must be running and reachable",
        ) from error


def _config(settings: JobSettings) -> dict[str, str]:
    config = dict(SPARK_CONFIG)
    if on_one_machine(settings.master):
        # Workers and driver share a machine: look up no names, and open nothing to others.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        config |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Without a secret, other users of this machine could run code through Spark's ports.
        config |= {"spark.authenticate": "true", _SECRET: secrets.token_hex(32)}
    if is_cluster(settings.master):
        config |= cluster_config(settings)
    return config | dict(settings.spark_config) | _logging(settings)


def _logging(settings: JobSettings) -> dict[str, str]:
    """Return the options that send Spark's log to a file, since the terminal is the user's."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = log_file(settings)
    rules = (Path(__file__).parent / "log4j2.properties").as_uri()
    given = settings.spark_config.get(JAVA_OPTIONS, "")
    options = f"-Dlog4j2.configurationFile={rules} -Dheadrace.spark.log={log} {given}"
    return {JAVA_OPTIONS: options.strip()}


def log_file(settings: JobSettings) -> Path:
    """Return the file of Spark's log on the driver's machine."""
    return (settings.data_dir / "spark.log").resolve()


@contextmanager
def checkpoint_folder() -> Iterator[str]:
    """Make a folder for one query, and remove it at the end of the block."""
    root = scratch_folder()
    sweep_scratch(root)
    with tempfile.TemporaryDirectory(
        prefix=f"headrace-{os.getpid()}-", dir=root, ignore_cleanup_errors=True
    ) as folder:
        yield folder


def sweep_scratch(root: Path) -> None:
    """Remove the folders of killed drivers, on systems with /proc, which shows who is alive.

    Other drivers may do the same at this moment, so a folder that is already gone is no error.
    """
    if not Path("/proc/self").exists():
        return
    for folder in root.glob("headrace-*-*"):
        pid = folder.name.split("-")[1]
        gone = pid.isdecimal() and not Path("/proc", pid).exists()
        with suppress(FileNotFoundError):
            if gone and folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def scratch_folder() -> Path:
    """Return a folder, in memory if possible, for files that Spark writes and nobody reads."""
    shared = Path("/dev/shm")  # noqa: S108 - checkpoints are scratch; memory is the fast place
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else Path("/tmp")  # noqa: S108
