"""The ``StreamJob`` class, which runs a topology on Spark."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from headrace.client import Admin, Client, Producer, PullConsumer
from headrace.embedded import embedded_broker
from headrace.errors import HeadraceError, JobFailedError, RequestTimeoutError, refuse
from headrace.java import use_java
from headrace.protocol.messages import Message
from headrace.runtime.checks import create_missing, read_cluster, start_problems
from headrace.runtime.commit.drivers import Lease, free_from_the_dead
from headrace.runtime.planning import owes_batch
from headrace.runtime.standing import LagReader, QueueLag
from headrace.runtime.state.home import StateHome, claimed
from headrace.runtime.state.local import restoring
from headrace.runtime.state.views import CommittedState, StateView
from headrace.settings import JobSettings
from headrace.spark.batches import BatchSinks
from headrace.spark.class_archive import JAVA_OPTIONS, QUIET, archive_of
from headrace.spark.cluster import Prepared, make_connection, prepare_topics
from headrace.spark.dead_session import end_session, forget_dead_session
from headrace.spark.driver import JobDriver
from headrace.spark.session import check_master, get_session, overdue
from headrace.spark.statistics import JobStatistics, Meter, pickle_plan
from headrace.topology.shapes import name_of
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from headrace.protocol.transactions import CommitRecord, PlanAnswer, Position, QueueName
    from headrace.runtime.control import Summary
    from headrace.runtime.job_plan import JobConnection
    from headrace.runtime.state.interface import StoreFactory
    from headrace.runtime.state.steps import Migrations
    from headrace.spark.ticks import Ticks
    from headrace.topology import OperatorHandle, Topology


K = TypeVar("K")
R = TypeVar("R")

# The topics that a job reads, and how far it has come in them.


class JobTopics:
    """The topics that a running job reads, including those that it writes for itself.

    Parameters
    ----------
    connection
        The job.
    queues
        Writable queues of the topics that the job writes.
    """

    def __init__(self, connection: JobConnection, queues: dict[str, list[QueueName]]) -> None:
        self._connection = connection
        self.queues = queues
        self._lag = LagReader(PullConsumer(connection.client, connection.plan.job))
        #: Ends of queues to which a batch has already sent messages for the next batch.
        self._sent: dict[QueueName, int] = {}

    def note(self, summaries: Iterable[Summary]) -> None:
        """Remember what the tasks of a batch sent, since a broker may show it a moment later."""
        for summary in summaries:
            self._sent |= summary.sent

    def lag(self, record: CommitRecord) -> dict[QueueName, QueueLag]:
        """Return what a commit leaves unread in each queue; empty for a job that reads no topic."""
        if not self._connection.source_topics():
            return {}
        return self._lag.read(record, self._ask().latest)

    def goals(self) -> Iterator[Callable[[CommitRecord], bool]]:
        """Yield the conditions that the last commit must meet, in turn, for a job to be caught up.

        First the job must have read what is in its topics now, and then what that becomes in the
        topics that it writes for itself: for each of them first the records, then the event time
        that follows them.  One such topic may feed another.
        """
        yield _reaches(self._ends())
        for _ in range(2 * len(self._connection.plan.topology.throughs)):
            answer = self._ask()
            assert answer.record is not None, "a job that runs has one"
            owed = owes_batch(self._connection.plan, answer, self.queues)
            yield _reaches({}, answer.record.batch + owed)
            yield _reaches(self._ends())

    def _ends(self) -> dict[QueueName, int]:
        latest = self._ask().latest
        return latest | {q: max(end, latest.get(q, 0)) for q, end in self._sent.items()}

    def _ask(self) -> PlanAnswer:
        connection = self._connection
        return connection.transactions.plan(connection.source_topics(), {}, 0, 0)


def _reaches(ends: dict[QueueName, int], batch: int = 0) -> Callable[[CommitRecord], bool]:
    return lambda record: (
        record.batch >= batch
        and all(end <= record.offsets.get(queue, 0) for queue, end in ends.items())
    )


class StreamJob:
    """Runs a topology on Spark.

    One batch is one transaction: what it reads, keeps and writes becomes visible together.  After
    a temporary failure, such as a restarted broker or a lost task, the job goes on by itself from
    the last commit.

    Parameters
    ----------
    topology
        What to compute.
    settings
        Where and how to run; without a name server the job uses the embedded broker of
        ``data_dir``.
    migrate
        What to do with the state of operators that were renamed or changed, by their old names: a
        new name, or a :class:`~headrace.StateMigration`.
    stores
        Makes state stores of another kind than RocksDB: takes a
        :class:`~headrace.runtime.StorePlace` and returns a :class:`~headrace.runtime.StateStore`.
    ticks
        What begins a batch if the driver plans the batches itself, without a planner process beside
        it, as for tasks of Connect.

    Examples
    --------
    ::

        with StreamJob(topology, JobSettings(namesrv="127.0.0.1:9876")).start() as job:
            job.await_caught_up()
            print(job.statistics().records_in)
    """

    def __init__(
        self,
        topology: Topology,
        settings: JobSettings | None = None,
        *,
        migrate: Migrations | None = None,
        stores: StoreFactory | None = None,
        ticks: Ticks | None = None,
    ) -> None:
        self.topology = topology
        self._migrations = migrate or {}
        self._stores = stores
        self._ticks = ticks
        self.settings = settings or JobSettings()
        self._meter = Meter()
        self._prepared: Prepared | None = None
        #: Connected before anything else of a start happens.
        self._connected: JobConnection | None = None
        #: Whether the cluster was checked and nothing keeps the job from starting.
        self._is_sound = False
        self._connection: JobConnection | None = None
        self._supervisor: threading.Thread | None = None
        #: Set when the supervisor thread has nothing left to do.
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self._driver: JobDriver | None = None
        self._opened = ExitStack()
        #: Held by the thread that starts or stops the job.
        self._turn = threading.Lock()
        self._views: dict[str, CommittedState] = {}
        self._batches: BatchSinks | None = None

    def start(self) -> Self:
        """Open a new epoch and run, in the background, until :meth:`stop` or a failure.

        Raises
        ------
        HeadraceError
            The job cannot start: there is no broker at the address or no Java, or :meth:`problems`
            finds something, all of which is in one error.
        """
        with self._turn:
            if self._supervisor is not None:
                raise JobFailedError(
                    f"job '{self.topology.name}' was already started", hint="make a new StreamJob"
                )
            try:
                driver = self._begin()
            except BaseException:
                self._close()
                raise
            self._supervisor = watched_thread(
                partial(self._supervise, driver),
                name=f"headrace-{self.topology.name}",
                on_failure=driver.fail,
            )
            self._ended.clear()
            self._supervisor.start()
        return self

    def prepare(self) -> list[Prepared]:
        """Do what a start needs before it opens an epoch: check the cluster and start Spark.

        :meth:`start` does this by itself.  Another driver may run the job meanwhile.

        Raises
        ------
        HeadraceError
            As for :meth:`start`.
        """
        if self._prepared is None:
            refuse(f"job '{self.topology.name}' cannot start", self.problems())
            connection = self._connect()
            queues = prepare_topics(connection)
            get_session(self.settings, self.topology.name)
            self._prepared = Prepared(connection, pickle_plan(connection.plan), queues)
        return [self._prepared]

    def problems(self) -> list[HeadraceError]:
        """Return what keeps the job from starting, as far as the cluster shows it.

        That is: topics that are missing or of the wrong kind, state from which the topology cannot
        go on, and offsets that the queues do not hold.  :meth:`start` raises all of these as one
        error before Spark starts and before anything is made or changed.
        """
        if self._is_sound:
            return []
        connection = self._connect()
        found = start_problems(connection.plan, self._migrations, read_cluster(connection))
        self._is_sound = not found
        return found

    def create_topics(self, queues: int | None = None) -> list[str]:
        """Make the missing topics of those that the job reads and writes.

        Topics that it reads as tables become compaction topics.

        Parameters
        ----------
        queues
            Number of queues of each topic on each broker; by default the job's number of
            partitions.

        Returns
        -------
        list[str]
            The topics that were made.
        """
        return create_missing(self._connect(), queues or self.settings.partitions)

    def _connect(self) -> JobConnection:
        if self._connected is None:
            # A wrong master must show before anything is made on the broker.
            check_master(self.settings)
            with ExitStack() as opened:
                namesrv = self.settings.namesrv or opened.enter_context(
                    embedded_broker(self.settings.data_dir)
                )
                connection = make_connection(self.topology, self.settings, namesrv, self._stores)
                opened.callback(connection.close)
                self._connected = connection
                self._opened.push(opened.pop_all())
        return self._connected

    def _close(self) -> None:
        self._connection = self._connected = self._prepared = None
        self._is_sound = False
        self._opened.close()

    def _begin(self) -> JobDriver:
        (prepared,) = self.prepare()
        connection, plan = prepared.connection, prepared.connection.plan
        self._topics = JobTopics(connection, prepared.queues)
        driver = JobDriver(
            connection,
            prepared.handle,
            prepared.queues,
            self._migrations,
            self._committed,
            self._ticks,
        )
        self._opened.callback(connection.transactions.close)
        driver.open()
        if plan.embedded:
            # On RocketMQ the transactions have a lease of their own.
            lease = Lease(connection.client, plan.job, driver.name)
            free_from_the_dead(connection.client, lease, plan.topology.commit_topic)
            lease.on_failure = driver.fail
            lease.keep()
            self._opened.callback(lease.release)
        self._opened.enter_context(claimed(plan.state_root))
        sinks = BatchSinks(connection, prepared.handle, driver.batch)
        self._batches = self._opened.enter_context(sinks)
        self._connection, self._driver = connection, driver
        return driver

    def stop(self) -> None:
        """Stop the job and wait for its end; a batch that is not committed is dropped.

        If another thread is starting the job, the call waits for that start, and ends its wait for
        a lease.
        """
        if (prepared := self._prepared) is not None:
            prepared.connection.transactions.give_up()
        with self._turn:
            if self._driver is not None:
                self._driver.stop()
            if self._supervisor is not None:
                self._supervisor.join()
                self._supervisor = None
            self._close()

    def await_caught_up(self, timeout: timedelta | None = None) -> None:
        """Wait until everything that is in the source topics at this moment is committed.

        By then the records that this makes in topics of :meth:`Stream.through` are read too.

        Raises
        ------
        RequestTimeoutError
            That did not happen within ``timeout``.
        HeadraceError
            The job failed.
        """
        self._running()
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        for reaches in self._topics.goals():
            self._await(reaches, deadline, timeout)

    def await_commit(self, timeout: timedelta | None = None) -> None:
        """Wait until this driver has committed a batch.

        Raises
        ------
        RequestTimeoutError
            That did not happen within ``timeout``.
        HeadraceError
            The job failed.
        """
        self._running()
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        driver = self._driver
        self._await(
            lambda record: (
                record.kind == "commit" and driver is not None and record.epoch == driver.epoch
            ),
            deadline,
            timeout,
        )

    def _await(
        self,
        reaches: Callable[[CommitRecord], bool],
        deadline: float | None,
        timeout: timedelta | None,
    ) -> None:
        with self._changed:
            while self._record is None or not reaches(self._record):
                self._check_alive()
                rest = None if deadline is None else deadline - time.monotonic()
                if rest is not None and rest <= 0:
                    raise RequestTimeoutError(
                        f"job '{self.topology.name}' did not catch up within {timeout}",
                        hint="ask job.statistics() for its lag and rate",
                    )
                self._changed.wait(1.0 if rest is None else min(rest, 1.0))

    def await_batches(self, timeout: timedelta | None = None) -> None:
        """Wait until what is committed now is handed to ``for_each_batch`` and ``sink_dataframe``.

        Raises
        ------
        RequestTimeoutError
            That did not happen within ``timeout``.
        """
        self._running()
        if self._batches is not None and self._record is not None:
            self._batches.await_done(self._record.batch, timeout)

    def await_termination(self, timeout: timedelta | None = None) -> bool:
        """Wait for the job's end; return whether it came within ``timeout``.

        Raises
        ------
        HeadraceError
            The job failed.
        """
        # In Python 3.11 a join that Ctrl-C interrupts marks the thread as ended.
        limit = None if timeout is None else timeout.total_seconds()
        supervisor = self._supervisor
        if supervisor is not None and self._ended.wait(limit):
            supervisor.join()
        if self._failure is not None:
            raise self._failure
        return self._supervisor is None or not self._supervisor.is_alive()

    def statistics(self) -> JobStatistics:
        """Return how far the job has come, and how fast it is."""
        record, connection, prepared = self._record, self._connection, self._prepared
        lag = None
        if record is not None and connection is not None and self._failure is None:
            lag = self._topics.lag(record)
        root = None if connection is None else connection.plan.state_root
        return self._meter.statistics(
            record,
            lag,
            (0, 0) if root is None else restoring(root),
            running=self._failure is None,
            restarts=0 if self._driver is None else self._driver.restarts,
            batches={} if self._batches is None else self._batches.statistics(),
            waiting=None if prepared is None else prepared.connection.transactions.waiting,
        )

    @property
    def batch(self) -> int:
        """The last committed batch; 0 if there is none."""
        return 0 if self._driver is None else self._driver.batch

    @property
    def positions(self) -> Mapping[str, Position]:
        """The positions in outside systems at the last commit, by partition."""
        return {} if self._record is None else self._record.positions

    def stalled(self) -> float:
        """Return for how many seconds nobody has checked on the job's query.

        The driver checks several times a second, so a longer time means that the driver or Java
        hangs.  It is 0 while the driver has other work, unless Spark has been starting for longer
        than two minutes.
        """
        return max(overdue(), 0.0 if self._driver is None else self._driver.stalled())

    @overload
    def state(self, operator: OperatorHandle[K, Any, R]) -> StateView[K, R]: ...
    @overload
    def state(self, operator: str) -> StateView[Any, Any]: ...
    def state(self, operator: str | OperatorHandle[K, Any, R]) -> StateView[K, R]:
        """Return a view of an operator's state, as of the last commit; see :class:`StateView`.

        Pass the table that the operator makes, or the operator's name.  The view has
        ``get(key)``, ``all()``, ``range(start, stop)``, ``prefix(text)``,
        ``window(key, start, stop)`` and ``scan()``, and can be used until the job stops.

        Raises
        ------
        StateError
            The job has committed nothing, or has no state of this name.
        """
        connection = self._running()
        name = name_of(operator)
        if name not in self._views:
            names = connection.plan.state_topics
            known = self.topology.operator(name) if name in names else None
            # The view has transactions of its own, because another thread uses the job's.
            home = StateHome.of(self.topology.name, connection.client)
            self._views[name] = self._opened.enter_context(CommittedState(home, name, known))
        return self._views[name]

    @property
    def _record(self) -> CommitRecord | None:
        return None if self._driver is None else self._driver.record

    @property
    def _failure(self) -> HeadraceError | None:
        return None if self._driver is None else self._driver.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _running(self) -> JobConnection:
        if self._connection is None:
            raise JobFailedError(
                f"job '{self.topology.name}' is not running", hint="call start() first"
            )
        return self._connection

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._supervisor is None or not self._supervisor.is_alive():
            raise JobFailedError(f"job '{self.topology.name}' was stopped")

    def _supervise(self, driver: JobDriver) -> None:
        try:
            driver.supervise()
        finally:
            self._ended.set()
            with self._changed:
                self._changed.notify_all()

    def _committed(self, record: CommitRecord, summaries: list[Summary]) -> None:
        with self._changed:
            self._meter.committed(record)
            self._topics.note(summaries)
            self._changed.notify_all()
        if self._batches is not None:
            self._batches.committed(record.batch)


# The archive of Spark's classes, which a small job makes.

_LINES = 200
_BATCHES = 4
_PATIENCE = timedelta(minutes=5)


def make_archive() -> Path:
    """Run a small job, let Java write an archive of the classes it used, and return its path.

    Raises
    ------
    JavaNotFoundError
        There is no Java 17 or newer.
    JobFailedError
        This Java wrote no archive.
    """
    java = use_java()
    path = archive_of(java)
    with tempfile.TemporaryDirectory(prefix="headrace-archive-", dir=path.parent) as folder:
        made = Path(folder) / "new.jsa"
        options = f'"-XX:ArchiveClassesAtExit={made}" {QUIET}'
        settings = JobSettings(
            data_dir=Path(folder) / "job",
            master="local[2]",
            partitions=2,
            spark_config={JAVA_OPTIONS: options},
        )
        _run_job(settings)
        # Java writes the archive when it ends.
        end_session(_PATIENCE)
        forget_dead_session()
        if not made.is_file():
            raise JobFailedError(
                f"Java {java.version} ({java.home}) wrote no archive of Spark's classes",
                hint="Spark runs without one, and starts more slowly; a full JDK or JRE can write"
                " it, some small runtimes cannot",
            )
        # Others that start at this moment must see the whole file or none.
        shutil.move(made, path)
    return path


def _run_job(settings: JobSettings) -> None:
    """Run a word count, whose two stages and state need the classes that all jobs need."""
    with embedded_broker(settings.data_dir) as address, Client(address) as client:
        for topic in ("lines", "counts"):
            Admin(client).create_topic(topic, queues=2)
        producer = Producer(client)
        with StreamJob(_word_count(), settings).start() as job:
            for batch in range(_BATCHES):
                producer.send_batch(
                    [Message(topic="lines", body=f"line {batch}".encode())] * _LINES
                )
                job.await_caught_up(_PATIENCE)


def _word_count() -> Topology:
    from headrace import StreamBuilder, serdes

    builder = StreamBuilder("class-archive")
    words = builder.source("lines", serdes.string).flat_map_values(str.split)
    words.key_by(lambda word: word).count().sink("counts", serdes.json)
    return builder.build()
