"""The Spark session that jobs run in."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.errors import JavaEndedError, JobFailedError, SettingsError
from headrace.java import use_java
from headrace.spark.class_archive import JAVA_OPTIONS, archive_options
from headrace.spark.cluster import Shipment, cluster_config, is_cluster, on_one_machine
from headrace.spark.dead_session import forget_dead_session
from headrace.spark.gateway import launch_quietly
from headrace.spark.local_files import write_without_processes
from headrace.spark.masters import find_master

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.settings import JobSettings

__all__ = [
    "SPARK_CONFIG",
    "check_master",
    "checkpoint_folder",
    "get_session",
    "log_file",
    "overdue",
    "scratch_folder",
    "sweep_scratch",
]

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

#: What each setting is for stands beside it; all were measured (docs/performance.md).
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
    """Give the running session, or start one with Headrace's settings under the user's.

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
    """Give the seconds by which a start of Spark takes longer than any should; 0: none does.

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
