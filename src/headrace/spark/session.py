"""The Spark session that jobs run in."""

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
from headrace.spark.class_archive import JAVA_OPTIONS, archive_options
from headrace.spark.cluster import Shipment, cluster_config, is_cluster, on_one_machine
from headrace.spark.dead_session import forget_dead_session
from headrace.spark.family import MARK, family_mark, start_reaper
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from py4j.java_gateway import JavaGateway

    from headrace.settings import JobSettings


# Looks for the master of a standalone cluster before Spark does, which takes a minute for it.

#: Seconds between two looks for one that starts.
_PAUSE = 0.2
#: A file that no master has.
_NAME = b"/jars/headrace"
#: A frame of Spark's transport: its length, its type, then what it asks for.  Everyone may ask for
#: a file, before any secret is shown.
_HEAD, _STREAM_REQUEST, _STREAM_ANSWERS = struct.Struct(">qb"), 6, (7, 8)
_REQUEST = _HEAD.pack(_HEAD.size + 4 + len(_NAME), _STREAM_REQUEST) + struct.pack(
    f">i{len(_NAME)}s", len(_NAME), _NAME
)


def find_master(master: str, timeout: timedelta, patience: timedelta = timedelta(0)) -> None:
    """Return when one of the masters answers in the words of Spark's transport.

    Parameters
    ----------
    master
        As Spark has it, ``spark://HOST:PORT,HOST:PORT``; others are not looked for.
    timeout
        How long each of them has.
    patience
        How long one that does not listen yet may take until it does.

    Raises
    ------
    OSError
        None answers; what each does instead.
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
    """Ask each in turn until one answers; give what the others do, nothing where one does."""
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
            raise OSError(f"it takes connections, and has said nothing for {wait:g} s") from None
    if len(head) == _HEAD.size and _HEAD.unpack(head)[1] in _STREAM_ANSWERS:
        return
    # With spark.ssl.rpc.enabled a master hangs up on whoever does not encrypt.
    if not _speaks_tls(address, wait):
        raise OSError("something else than a master of Spark is there")


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


# Starts Spark's Java process, sees to its end, and keeps two kinds of noise off the terminal.
#
# Everything that Java and Spark's Python workers print comes through: a user's own ``print`` too.
# Left out are Java's remark on incubator modules, and the traceback that a worker prints when Spark
# closes its connection because it was idle for a minute.

_TRACEBACK = "Traceback (most recent call last):\n"
_INCUBATOR = "WARNING: Using incubator modules"
#: What Spark takes for a secret, unless it is told otherwise.
_REDACTED = "(?i)secret|password|token|access[.]?key|credential"
#: What stands below a frame of the daemon where Python has its source, with the marks below that.
_SOURCE_LINE = re.compile(r"    +(code = worker\(|outfile\.flush\(|[~^]+\s*$)")
_BROKEN_PIPE = "BrokenPipeError: [Errno 32] Broken pipe\n"


def launch_quietly(conf: SparkConf, folder: Path | None = None) -> JavaGateway:
    """Start the Java process of a session; it and its Python workers end with this process.

    Parameters
    ----------
    conf
        Settings of the session.  Secrets in it are not on the command line of the process: the
        session must set them in it.
    folder
        The folder that it works in; this process's by default.
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
        # Java would wait for ever for somebody to read what it prints.
        on_failure=lambda _error: errors.close(),
    ).start()
    return gateway


def shown_settings(conf: SparkConf) -> list[tuple[str, str]]:
    """Return the settings but those that Spark's pages hide, which it tells by their names."""
    hidden = re.compile(conf.get("spark.redaction.regex", _REDACTED))
    return [(name, value) for name, value in conf.getAll() if not hidden.search(name)]


def _forward(stream: IO[bytes]) -> None:
    noise = NoiseFilter()
    for line in stream:
        sys.stderr.write(noise.feed(line.decode(errors="replace")))
        sys.stderr.flush()


class NoiseFilter:
    r"""Takes lines and gives what is worth showing.

    Several workers may print at once, so their tracebacks come interleaved.

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
        """Return the line, with what was held back before it, or nothing."""
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


# Files that Spark writes on the driver's machine: none of them starts a process.
#
# Spark notes the begin and the end of every batch in a folder of its own.  Hadoop's class for local
# files sets the permissions of each by the program ``chmod``, where its native library is missing: four
# processes a batch.  Java has a call for that.

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
    """Have Java itself set the permissions of local files, where Hadoop would start a program for that.

    A class that the user has named stays.

    Caller: whoever has just started Spark; nobody has files open by Hadoop's class yet.
    """
    java: Any = context._jvm  # noqa: SLF001 - Spark's Python has no face for it
    try:
        if java.org.apache.hadoop.io.nativeio.NativeIO.isAvailable():
            return
        conf = java.org.apache.hadoop.conf.Configuration(context._jsc.hadoopConfiguration())  # noqa: SLF001
        if conf.get(_IMPLEMENTATION) is not None:
            return
        # Spark compiles its own plans by the same compiler.
        compiler = java.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(java.Thread.currentThread().getContextClassLoader())
        compiler.cook(_SOURCE)
        conf.setClassLoader(compiler.getClassLoader())
        conf.set(_IMPLEMENTATION, _CLASS)
        # There is one for all who ask in this process: the first that was made.
        files, place = java.org.apache.hadoop.fs.FileSystem, java.java.net.URI("file:///")
        files.get(place, conf).close()
        files.get(place, conf)
    except (Py4JError, TypeError) as error:
        # Another Spark may have other classes: then its files take the time that they take.
        logger.info("Spark sets the permissions of local files by chmod: %s", error)


#: Jobs that share a session may all find that its Java process has ended.
_starting = threading.Lock()
#: Whether Spark has run in this process.
_has_run = False
#: The session with the settings that it was told last: each thread that asks would tell it all of
#: them anew, with some three hundred calls into Java.
_told: tuple[SparkSession, object] | None = None
#: When the start that is under way began, by the monotonic clock.
_began: float | None = None
#: A start may take so long on a machine that has much else to do, s.
_LONGEST_START = 120.0

#: What Spark says of a context that it has stopped because no master has answered.
_STOPPED = "Cannot call methods on a stopped SparkContext"
_MASTER = re.compile(r"local(-cluster)?(\[.*\])?$|spark://|yarn$|k8s://")
_SECRET = "spark.authenticate.secret"  # noqa: S105 - a name
_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"

#: What each setting is for stands beside it; all were measured (docs/explanation/performance.md).
SPARK_CONFIG: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    # A loopback connection waits up to 40 ms for an acknowledgement, in every task.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Spark's own log of batches is scratch for us: no file manager that starts processes.
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_CHECKPOINTING}.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "2",
    # A stage has one row per block; nothing is gained by looking at sizes between stages.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.speculation": "false",
    # What writers of sink_dataframe run takes turns with the job, and does not go before it.
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    # Workers are forked with everything imported: a new one is there in milliseconds.
    "spark.python.daemon.module": "headrace.spark.daemon",
    "spark.driver.memory": "1g",
}


def get_session(settings: JobSettings, name: str = "headrace") -> SparkSession:
    """Return the running session, or start one with Headrace's settings under the user's.

    Parameters
    ----------
    settings
        Where to run, and how.
    name
        What a cluster's pages call the application that is started.

    Raises
    ------
    JavaNotFoundError
        No Java 17 or newer is there.
    SettingsError
        The master is none that Spark knows.
    JobFailedError
        Spark did not start: its master does not answer, for example.
    JavaEndedError
        It did not, and has run before: another try may help.
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
    conf = SparkConf().setAppName(name).setMaster(settings.master)
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


def _has_been_told(session: SparkSession, told: object) -> bool:
    """Whether these settings were the last that a session was told, which is not over."""
    return (session, told) == _told and session.sparkContext._jsc is not None  # noqa: SLF001


def check_master(settings: JobSettings) -> None:
    """See that Spark knows the master, and that one of a standalone cluster answers.

    Raises
    ------
    SettingsError
        The master is none that Spark knows.
    JobFailedError
        None of the masters that are named answers within ``connect_timeout``.
    JavaEndedError
        The same, and Spark has run in this process before.
    """
    if not _MASTER.match(settings.master):
        raise SettingsError(
            f"master is '{settings.master}', which Spark does not know",
            hint="give local[N], spark://HOST:PORT, yarn or k8s://URL",
        )
    with _failures_told(settings):
        # One that was started a moment ago does not listen yet: its Java takes its time.
        find_master(settings.master, settings.connect_timeout, 2 * settings.connect_timeout)


def overdue() -> float:
    """Return the seconds by which a start of Spark takes longer than any should; 0: none does.

    Java may be killed at any moment of its start, and not every call of Spark notices.
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
                # What users name by relative paths stays where it is.
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
    """Tell in one line why Spark does not start."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        java = getattr(error, "java_exception", None)
        why = str(error if java is None else java.toString()).partition("\n")[0]
        if _STOPPED in why:
            why = (
                "its master has not answered for a minute, has no room for applications, or has"
                f" another {_SECRET}"
            )
        log = log_file(settings)
        told = f"{log} tells more; " if log.exists() else ""
        # What has run with these settings is not mended by others: its Java was killed as it began.
        failure = JavaEndedError if _has_run else JobFailedError
        raise failure(
            f"Spark did not start on {settings.master}: {why}",
            hint=f"{told}a cluster's master must be up and reached",
        ) from error


def _config(settings: JobSettings) -> dict[str, str]:
    config = dict(SPARK_CONFIG)
    if on_one_machine(settings.master):
        # Workers and driver share a machine: no look-up of names, nothing open to others.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        config |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Others on this machine could have its ports run code.
        config |= {"spark.authenticate": "true", _SECRET: secrets.token_hex(32)}
    if is_cluster(settings.master):
        config |= cluster_config(settings)
    return config | dict(settings.spark_config) | _logging(settings)


def _logging(settings: JobSettings) -> dict[str, str]:
    """Send what Spark logs to a file of the job: the terminal is the user's."""
    settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = log_file(settings)
    rules = (Path(__file__).parent / "log4j2.properties").as_uri()
    given = settings.spark_config.get(JAVA_OPTIONS, "")
    options = f"-Dlog4j2.configurationFile={rules} -Dheadrace.spark.log={log} {given}"
    return {JAVA_OPTIONS: options.strip()}


def log_file(settings: JobSettings) -> Path:
    """Name the file of what Spark logs on the driver's machine."""
    return (settings.data_dir / "spark.log").resolve()


@contextmanager
def checkpoint_folder() -> Iterator[str]:
    """Make a folder for one query, removed with all that is in it."""
    root = scratch_folder()
    sweep_scratch(root)
    with tempfile.TemporaryDirectory(
        prefix=f"headrace-{os.getpid()}-", dir=root, ignore_cleanup_errors=True
    ) as folder:
        yield folder


def sweep_scratch(root: Path) -> None:
    """Remove what drivers left behind that were killed, where /proc tells who is alive.

    Others may do the same at this moment: what they have removed is no error.
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
    """Name a folder in memory for what Spark insists on writing and nobody reads."""
    shared = Path("/dev/shm")  # noqa: S108 - checkpoints are scratch; memory is the fast place
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else Path("/tmp")  # noqa: S108
