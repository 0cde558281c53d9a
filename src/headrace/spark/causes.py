"""Why tasks fail: Spark's long reports as one sentence that names the machine.

Spark tries a task again, on whichever machine has room, before it gives up on a batch.  A failure
that no retry can mend should end the batch sooner, and the user should learn of a lost machine
while others do its work.  So :class:`TaskWatch` looks into Spark's own records of executors and
tasks.
"""

from __future__ import annotations

import json
import logging
import math
import re
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from headrace.errors import HeadraceError, JavaEndedError, TaskFailedError, WorkerMismatchError
from headrace.spark.cluster import is_cluster
from headrace.spark.session import find_master

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


logger = logging.getLogger(__name__)

_SHIP = (
    "install it there, name another one with --spark-config spark.pyspark.python=PATH, or ship one"
    " to all machines with headrace pack and --archive (docs/guides/operate/cluster.md)"
)
_GOES_ON = "nothing is lost: the job goes on from its last commit"
_MEMORY = (
    f"{_GOES_ON}; if it happens again, give the machine more memory, or read less in each batch"
    " (max_records_per_batch, max_bytes_per_batch)"
)


@dataclass(frozen=True, slots=True)
class _Cause:
    #: A regular expression that is found in Spark's text.
    pattern: str
    #: What has happened; ``{host}`` and ``{executor}`` say where, numbers are the pattern's groups.
    what: str
    hint: str = _GOES_ON
    #: Whether every retry would fail as well.
    for_good: bool = False


#: Seconds from one look at Spark's records to the next.
_PAUSE = 1.0
#: Seconds without an executor before the master is asked, and between two warnings about it.
_ALONE, _AGAIN = 8.0, 30.0
#: Seconds that a page may take to answer.
_PATIENCE = 2.0
#: The number of executors that Spark asks for if no limit is set.
_UNLIMITED = 2**31 - 1
#: How many failed tasks of a stage are looked at.
_MOST = 20

#: The first one whose pattern is found in a text is its cause.
_CAUSES = (
    _Cause(
        r'Cannot run program "([^"]+)"',
        "machine {host} has no Python at {0}",
        _SHIP,
        for_good=True,
    ),
    _Cause(
        r"No module named '?((?:headrace|pyspark)\b[\w.]*)",
        "the Python of machine {host} has no module '{0}'",
        _SHIP,
        for_good=True,
    ),
    _Cause(
        r"No module named '?([\w.]+)",
        "the Python of machine {host} has no module '{0}'",
        "ship it with --py-files, put it into the archive with headrace pack --with, or install it"
        " on every machine",
        for_good=True,
    ),
    _Cause(
        r"PYTHON_VERSION_MISMATCH\][^\d]*(\d+\.\d+)[^\d]*(\d+\.\d+)",
        "machine {host} runs Python {0}, and the driver of the job Python {1}",
        "bring all machines to one version; docs/guides/operate/upgrade.md says what may differ",
        for_good=True,
    ),
    _Cause(
        r"heartbeat timed out after (\d+)\d{3} ms",
        "worker {host} has not been heard from for {0} s",
        f"{_GOES_ON}; is the machine up, and can it be reached?",
    ),
    _Cause(r"decommission", "worker {host} was decommissioned"),
    _Cause(
        r"(?i)worker lost|worker shutting down|not receiving heartbeat",
        "worker {host} is gone",
        f"{_GOES_ON}; is the machine up, and can it be reached?",
    ),
    _Cause(
        r"stage with indeterminate output was failed and retried",
        "an executor is gone, with results that other tasks of the batch had yet to fetch",
        f"{_GOES_ON}; the lines before this one say which executor",
    ),
    _Cause(
        r"exited with code 137|exit code (?:is )?137|Container killed|OOMKilled",
        "executor {executor} on machine {host} was killed, perhaps for lack of memory",
        _MEMORY,
    ),
    _Cause(
        r"OutOfMemoryError|MemoryError|std::bad_alloc",
        "executor {executor} on machine {host} ran out of memory",
        _MEMORY,
    ),
    _Cause(r"No space left on device", "the disk of machine {host} is full", "make room there"),
    _Cause(
        r"Python worker exited unexpectedly",
        "a Python worker on machine {host} ended in the middle of a task: it was killed,"
        " perhaps for lack of memory, or crashed in compiled code",
        _MEMORY,
    ),
    _Cause(r"exited with code (\d+)", "executor {executor} on machine {host} ended with code {0}"),
    _Cause(
        r"Remote RPC client disassociated|FetchFailed|Connection reset|ExecutorLostFailure",
        "executor {executor} on machine {host} is gone, with the results that it held",
        f"{_GOES_ON}; is the machine up, and can it be reached?",
    ),
)
#: Spark's words for an idle executor that it gave back.
_GIVEN_BACK = re.compile(r"scale down|killed by driver")
#: Spark's words for the place of a task that it gave up on.
_LOST = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor (\w+)\): ")
_TRACEBACK = "Traceback (most recent call last):"
_STACK = re.compile(r"^\s+at |^Driver stacktrace|^\s*\.\.\. \d+ more")
_CLASS = re.compile(r"^(?:[\w$]+\.)+[\w$]+: ")


def read_failure(job: str, text: str, log: str) -> HeadraceError:
    """Return the error that stopped a query, from Spark's report of it.

    Parameters
    ----------
    job
        The job's name.
    text
        Spark's report: messages, Java's stacks, and its plan of the query.
    log
        The log that has the details.

    Examples
    --------
    >>> text = (
    ...     "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent"
    ...     " failure: Lost task 0.3 in stage 1.0 (TID 9) (10.0.0.7 executor 1):"
    ...     ' java.io.IOException: Cannot run program "/opt/python": error=2'
    ... )
    >>> print(read_failure("words", text, "spark.log").message)
    job 'words': machine 10.0.0.7 has no Python at /opt/python
    """
    found = list(_LOST.finditer(text))
    if found:
        last = found[-1]
        return _failed_task(job, last[1], last[2], text[last.end() :], log)
    return _failed_task(job, socket.gethostname(), "driver", text, log)


def _failed_task(job: str, host: str, executor: str, text: str, log: str) -> HeadraceError:
    what, hint = f"a task failed on machine {host}: {_gist(text)}", _GOES_ON
    for cause in _CAUSES:
        if found := re.search(cause.pattern, text):
            what = cause.what.format(*found.groups(), host=host, executor=executor)
            hint = cause.hint
            if cause.for_good:
                return WorkerMismatchError(f"job '{job}': {what}", hint=hint)
            break
    hint = f"{hint}; see {_told_by(host, executor, log)}"
    return TaskFailedError(f"job '{job}': {what}", hint=hint)


def _told_by(host: str, executor: str, log: str) -> str:
    if executor == "driver":
        return log
    return f"{log}, and stderr of executor {executor} on machine {host}"


def _gist(text: str) -> str:
    """Return what was raised: the line after Python's traceback, or Java's first line."""
    _, is_python, raised = text.rpartition(_TRACEBACK)
    for line in raised.splitlines():
        if _STACK.match(line):
            break
        if line.strip() and not (is_python and line.startswith((" ", "\t"))):
            return _CLASS.sub("", line.strip())
    return "Spark does not say why"


class TaskWatch:
    """Watches executors come and go, and tasks fail, while a job's queries run.

    Parameters
    ----------
    job
        The job's name.
    log
        The log that has the details.
    """

    def __init__(self, job: str, log: str) -> None:
        self._job, self._log = job, log
        #: When it last saw that there was no executor, by the monotonic clock.
        self.alone_at = -math.inf
        self._looked = -math.inf
        #: When there last was an executor.
        self._alone = 0.0
        #: When to warn (again) that there is none.
        self._tells_at = -math.inf
        #: What it knows of the session that it watches; it starts again with another one.
        self._context: SparkContext | None = None
        self._spark: _Records | None = None
        self._failed = 0
        self._gone: set[str] = set()
        self._told: set[str] = set()

    def look(self) -> HeadraceError | None:
        """Log what has happened since the last look; return an error that no retry can mend."""
        now = time.monotonic()
        if now - self._looked < _PAUSE:
            return None
        if now - self._looked > _ALONE:
            # Nobody looked meanwhile, because the job had no query that could use cores.
            self._alone = now
        self._looked = now
        try:
            if (spark := self._records()) is None:
                return None
            executors = spark.executors()
            if self._is_forgotten(spark, executors, now):
                return JavaEndedError(
                    f"job '{self._job}' is no longer known to {spark.master}, which considered its"
                    " driver lost or was restarted",
                    hint=f"{_GOES_ON}, in a new application",
                )
            failed = sum(each["failedTasks"] for each in executors)
            more, self._failed = failed > self._failed, failed
            causes = [*self._lost(executors), *(spark.failures() if more else ())]
        except (Py4JError, OSError):
            # Java has ended, or is about to; the query itself reports that.
            return None
        for host, executor, text in causes:
            error = _failed_task(self._job, host, executor, text, self._log)
            if isinstance(error, WorkerMismatchError):
                return error
            if error.message not in self._told:
                self._told.add(error.message)
                logger.warning("%s; its tasks run again elsewhere", error.message)
        return None

    def _records(self) -> _Records | None:
        context = SparkContext._active_spark_context  # noqa: SLF001 - Spark offers no other look
        if context is not self._context:
            self._spark, self._context = _Records.of(context), context
            self._failed, self._gone, self._told = 0, set(), set()
        return self._spark

    def _is_forgotten(
        self, spark: _Records, executors: Sequence[dict[str, Any]], now: float
    ) -> bool:
        """Return whether the master forgot the job; warn if it waits for cores."""
        others = (each["id"] for each in executors if each["isActive"] and each["id"] != "driver")
        if any(spark.gets_tasks(executor) for executor in others):
            self._alone, self._tells_at = now, -math.inf
            return False
        self.alone_at = now
        if now - self._alone > _ALONE:
            if not spark.is_known():
                return True
            if now < self._tells_at:
                return False
            self._tells_at = now + _AGAIN
            logger.warning("job %s waits for cores: %s", self._job, spark.who_has_cores())
        return False

    def _lost(self, executors: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
        for each in executors:
            if not each["isActive"] and each["id"] not in self._gone:
                self._gone.add(each["id"])
                why = each["removeReason"] or ""
                if not _GIVEN_BACK.search(why):
                    yield _host(each), each["id"], why


class _Records:
    """Spark's records of its executors and tasks, read as JSON with one call each."""

    def __init__(self, context: SparkContext) -> None:
        jvm: Any = context._jvm  # noqa: SLF001 - Spark offers no other way to its records
        self.master = str(context.master)
        self._context, self._jvm = context, jvm
        self._tracker = context.statusTracker()
        self._store: Any = context._jsc.sc().statusStore()  # noqa: SLF001
        self._backend: Any = context._jsc.sc().schedulerBackend()  # noqa: SLF001
        self._json = jvm.com.fasterxml.jackson.databind.ObjectMapper()
        scala = getattr(jvm.com.fasterxml.jackson.module.scala, "DefaultScalaModule$")
        self._json.registerModule(getattr(scala, "MODULE$"))
        self._any, self._of_status = jvm.scala.Option.empty(), jvm.java.util.ArrayList()
        self._of_status.add(jvm.org.apache.spark.status.api.v1.TaskStatus.FAILED)

    @classmethod
    def of(cls, context: SparkContext | None) -> _Records | None:
        """Return the records if executors are processes of their own; None for a local master."""
        if context is None or not is_cluster(str(context.master)):
            return None
        return cls(context)

    def executors(self) -> list[dict[str, Any]]:
        """Return all executors that exist or existed."""
        found: list[dict[str, Any]] = self._read(self._store.executorList(False))  # noqa: FBT003
        return found

    def gets_tasks(self, executor: str) -> bool:
        """Return whether an active executor is given tasks.

        An executor that was silent for too long is not, but it counts as active until its
        connection ends, which never happens if its machine, or the driver's, was cut off.
        """
        return bool(self._backend.isExecutorActive(executor))

    def failures(self) -> Iterator[tuple[str, str, str]]:
        """Yield the host, executor and cause of tasks that failed in running stages."""
        for stage in self._tracker.getActiveStageIds():
            attempt = self._store.lastStageAttempt(stage).attemptId()
            args = (stage, attempt, 0, _MOST, self._any, True, self._of_status)
            for task in self._read(self._store.taskList(*args)):
                yield task["host"], task["executorId"], task["errorMessage"] or ""

    def is_known(self) -> bool:
        """Return whether a standalone master has the application, or cannot be asked.

        A driver that was cut off does not hear that its master gave it up.
        """
        if not self.master.startswith("spark://"):
            return True
        try:
            find_master(self.master, timedelta(seconds=_PATIENCE))
        except OSError:
            return True
        scala: Any = self._context._jsc.sc()  # noqa: SLF001
        # The request repeats an earlier one; only whether the master answers it matters.
        try:
            if self._context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
                return bool(scala.requestExecutors(0))
            nowhere = self._jvm.PythonUtils.toScalaMap(self._jvm.java.util.HashMap())
            return bool(scala.requestTotalExecutors(_UNLIMITED, 0, nowhere))
        except Py4JJavaError:
            # Its connection to the master has ended, and Spark makes no other.
            return False

    def who_has_cores(self) -> str:
        """Describe who has a standalone master's cores, as the master's page shows it."""
        master, own = self.master, self._context.applicationId
        if not master.startswith("spark://"):
            return f"{master} has given it none yet"
        host = master.removeprefix("spark://").partition(",")[0].rpartition(":")[0]
        port = self._context.getConf().get("spark.master.ui.port", "8080")
        page = f"http://{host}:{port}"
        try:
            with urlopen(f"{page}/json/", timeout=_PATIENCE) as answer:  # noqa: S310
                told = json.load(answer)
        except (OSError, ValueError):
            return f"{master} has given it none yet; {page}, which may say why, does not answer"
        if not told["workers"]:
            return f"no worker has registered with {master}"
        others = ", ".join(
            f"{app['name']} has {app['cores']} ({app['id']})"
            for app in told["activeapps"]
            if app["id"] != own and app["cores"]
        )
        starting = sum(app["cores"] for app in told["activeapps"] if app["id"] == own)
        if starting:
            return f"{master} has given it {starting}, on which its executors start"
        free = told["cores"] - told["coresused"]
        return (
            f"{master} has {told['cores']}, of which {free} are free; {others or 'no job has any'}"
        )

    def _read(self, records: Any) -> Any:
        return json.loads(self._json.writeValueAsString(records))


def _host(executor: dict[str, Any]) -> str:
    return str(executor["hostPort"]).rpartition(":")[0]
