"""A running job: the driver's side of a topology."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Self

import msgspec

from headrace.embedded import embedded_broker
from headrace.errors import HeadraceError, JobFailedError, RequestTimeoutError
from headrace.failpoints import failpoint
from headrace.runtime.commit.journal.drivers import DriverName
from headrace.runtime.commit.lease import Lease
from headrace.runtime.sources.starts import starting_offsets
from headrace.runtime.state.checks import settled_record
from headrace.runtime.state.home import StateHome
from headrace.runtime.state.local import restoring
from headrace.runtime.state.views import StateView
from headrace.settings import JobSettings
from headrace.spark.batches import BatchSinks
from headrace.spark.coordinator import assemble
from headrace.spark.job_topics import JobTopics
from headrace.spark.launch import make_connection, pickle_plan, prepare_topics
from headrace.spark.query import failure_of, run_query
from headrace.spark.rows import blocks_of
from headrace.spark.session import checkpoint_folder, get_session
from headrace.spark.source import Launch
from headrace.spark.statistics import JobStatistics, Meter

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import TracebackType

    from pyspark.sql import DataFrame

    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.control import Summary
    from headrace.runtime.job_plan import JobConnection
    from headrace.runtime.state.checks import Migrations
    from headrace.runtime.state.interface import StoreFactory
    from headrace.spark.worker import PlanHandle
    from headrace.topology import Topology

__all__ = ["StreamJob"]

logger = logging.getLogger(__name__)

_RESTARTS = 5
_FIRST_PAUSE = 0.5
_POLL = 0.02


class StreamJob:
    """Runs a topology on Spark.

    One batch is one transaction: what a batch reads, keeps and writes becomes visible together.
    After a failure that may pass (a broker that was restarted, a lost task) the job goes on by
    itself from the last commit.

    Parameters
    ----------
    topology
        What to compute.
    settings
        Where and how; without a name server the embedded broker of ``data_dir`` is used.
    migrate
        What becomes of the state of operators that were renamed or changed, by their old names: a
        new name, or a :class:`~headrace.StateMigration`.
    stores
        Makes state stores of another kind than RocksDB: takes a
        :class:`~headrace.runtime.StorePlace`, gives a :class:`~headrace.runtime.StateStore`.

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
    ) -> None:
        self.topology = topology
        self._migrations = migrate or {}
        self._stores = stores
        self.settings = settings or JobSettings()
        self._meter = Meter()
        self._connection: JobConnection | None = None
        self._supervisor: threading.Thread | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self._failure: HeadraceError | None = None
        self._batch_failure: HeadraceError | None = None
        self._record: CommitRecord | None = None
        self._stages = 1
        self._driver = str(DriverName.here())
        self._epoch = 0
        self._epoch_is_over = False
        self._opened = ExitStack()
        self._views: dict[str, StateView] = {}
        self._handle: PlanHandle | None = None
        self._batches: BatchSinks | None = None

    def start(self) -> Self:
        """Begin a new epoch and run until :meth:`stop` or a failure.

        Raises
        ------
        HeadraceError
            The job cannot start: no broker at the address, a topic is missing, no Java, ...
        """
        if self._supervisor is not None:
            raise JobFailedError(
                f"job '{self.topology.name}' was started before", hint="make a new StreamJob"
            )
        with ExitStack() as opened:
            namesrv = self.settings.namesrv or opened.enter_context(
                embedded_broker(self.settings.data_dir)
            )
            connection = make_connection(self.topology, self.settings, namesrv, self._stores)
            opened.callback(connection.close)
            self._topics = JobTopics(connection, prepare_topics(connection))
            session = get_session(self.settings)
            opened.callback(connection.transactions.close)
            self._open(connection)
            self._handle = pickle_plan(connection.plan)
            lease = Lease(
                connection.client,
                connection.plan.job,
                connection.plan.topology.commit_topic,
                self._driver,
            )
            lease.keep()
            opened.callback(lease.release)
            assert self._record is not None
            sinks = BatchSinks(connection, self._handle, session, self._record.batch)
            self._batches = opened.enter_context(sinks)
            self._opened = opened.pop_all()
        self._connection = connection
        self._stages = len(connection.plan.stages.stages)
        self._supervisor = threading.Thread(
            target=self._supervise,
            name=f"headrace-{self.topology.name}",
            daemon=True,
        )
        self._supervisor.start()
        return self

    def stop(self) -> None:
        """Stop the job and wait for its end; a batch that is not committed is dropped."""
        self._stopping.set()
        self._ended.set()
        if self._supervisor is not None:
            self._supervisor.join()
            self._supervisor = None
        self._connection = None
        self._opened.close()

    def await_caught_up(self, timeout: timedelta | None = None) -> None:
        """Wait until everything that was in the source topics at this moment is committed.

        What it became in topics of :meth:`Stream.through` is read by then too.

        Raises
        ------
        RequestTimeoutError
            It was not, within ``timeout``.
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
            It has not, within ``timeout``.
        HeadraceError
            The job failed.
        """
        self._running()
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        self._await(
            lambda record: record.kind == "commit" and record.epoch == self._epoch,
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
            It was not, within ``timeout``.
        """
        self._running()
        if self._batches is not None and self._record is not None:
            self._batches.await_done(self._record.batch, timeout)

    def await_termination(self, timeout: timedelta | None = None) -> bool:
        """Wait for the job's end; tell whether it came within ``timeout``.

        Raises
        ------
        HeadraceError
            The job failed.
        """
        if self._supervisor is not None:
            self._supervisor.join(None if timeout is None else timeout.total_seconds())
        if self._failure is not None:
            raise self._failure
        return self._supervisor is None or not self._supervisor.is_alive()

    def statistics(self) -> JobStatistics:
        """Say how far the job is, and how fast."""
        record, connection = self._record, self._connection
        lag = None
        if record is not None and connection is not None and self._failure is None:
            lag = self._topics.lag(record)
        root = None if connection is None else connection.plan.state_root
        return self._meter.statistics(
            record,
            lag,
            (0, 0) if root is None else restoring(root),
            running=self._failure is None,
            batches={} if self._batches is None else self._batches.statistics(),
        )

    def state(self, operator: str) -> StateView:
        """Look into the state of an operator, as of the last commit; see :class:`StateView`.

        ``get(key)``, ``range(start, stop)``, ``prefix(text)``, ``window(key, start, stop)``,
        ``scan()``; the view ends with the job.

        Raises
        ------
        StateError
            The job has committed nothing, or has no state of this name.
        """
        connection = self._running()
        if operator not in self._views:
            names = connection.plan.state_topics
            known = self.topology.operator(operator) if operator in names else None
            # Transactions of its own: the job's are used by another thread.
            home = StateHome.of(self.topology.name, connection.client)
            self._views[operator] = self._opened.enter_context(StateView(home, operator, known))
        return self._views[operator]

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

    def _open(self, connection: JobConnection) -> None:
        failpoint("job.before_open")
        answer = connection.transactions.open(self._driver)
        failpoint("job.opened")
        self._epoch = answer.epoch
        self._epoch_is_over = False
        record = settled_record(
            connection.state_home, answer.record, connection.plan, self._migrations
        )
        last = self._record
        if last is not None and record.batch == last.batch:
            # Without a commit since, it starts where it started, also if that was the latest.
            record = msgspec.structs.replace(record, offsets=last.offsets)
        offsets = starting_offsets(connection, record, restarted=last is not None)
        self._record = msgspec.structs.replace(record, offsets=offsets)
        if record.batch:
            # The driver before this one may have committed a batch without publishing it.
            connection.transactions.publish(record)

    def _supervise(self) -> None:
        pause, restarts, last_batch = _FIRST_PAUSE, 0, -1
        try:
            while not self._stopping.is_set():
                try:
                    if self._epoch_is_over:
                        self._open(self._running())
                    self._run()
                    return
                except HeadraceError as error:
                    batch = self._record.batch if self._record else 0
                    pause, restarts = (
                        (_FIRST_PAUSE, 0) if batch > last_batch else (pause * 2, restarts + 1)
                    )
                    last_batch = batch
                    if not error.retriable or restarts >= _RESTARTS or self._stopping.is_set():
                        raise
                    logger.warning("job %s goes on after: %s", self.topology.name, error)
                    self._meter.restarts += 1
                    self._stopping.wait(pause)
                    self._epoch_is_over = True
        except HeadraceError as error:
            if not self._stopping.is_set():
                self._failure = error
        except Exception as error:  # noqa: BLE001 - the thread's end must tell the caller
            self._failure = JobFailedError(f"job '{self.topology.name}' failed: {error}")
        finally:
            with self._changed:
                self._changed.notify_all()

    def _run(self) -> None:
        assert self._record is not None
        assert self._handle is not None
        launch = Launch(
            handle=self._handle,
            epoch=self._epoch,
            record=msgspec.json.encode(self._record),
            queues=self._topics.queues,
            splits=self.settings.partitions,
        )
        self._batch_failure = None
        if not self._stopping.is_set():
            self._ended.clear()
        with checkpoint_folder() as folder:
            try:
                run_query(
                    get_session(self.settings),
                    launch,
                    stages=self._stages,
                    partitions=self.settings.partitions,
                    interval=self.settings.batch_interval,
                    checkpoint=folder,
                    on_batch=partial(self._on_batch, self._epoch),
                    ended=self._ended,
                )
            except Exception as error:
                if self._batch_failure is None:
                    raise failure_of(self.topology.name, error) from error
        if self._batch_failure is not None:
            raise self._batch_failure

    def _on_batch(self, epoch: int, frame: DataFrame, _: int) -> None:
        """Collect what the tasks report (the batch's one action) and commit it.

        A failure is kept for the supervisor, which stops the query: raised here, it would come
        back as text inside two of Spark's own errors.
        """
        # A query of an older epoch may outlive the patience for its end.
        if self._batch_failure is not None or epoch != self._epoch:
            return
        try:
            table = frame.toArrow()
            blocks = [block for batch in table.to_batches() for block in blocks_of(batch)]
            if not blocks:
                return
            assert self._record is not None
            end, summaries = assemble(
                self._record, epoch, blocks, self._stages, int(time.time() * 1000)
            )
            transactions = self._running().transactions
            failpoint("job.before_commit")
            transactions.commit(end)
            failpoint("job.after_commit")
            transactions.publish(end.record)
            failpoint("job.published")
            self._committed(end.record, summaries)
        except HeadraceError as error:
            self._batch_failure = error
            self._ended.set()

    def _committed(self, record: CommitRecord, summaries: list[Summary]) -> None:
        with self._changed:
            self._meter.committed(record)
            self._record = record
            self._topics.note(summaries)
            self._changed.notify_all()
        if self._batches is not None:
            self._batches.committed(record.batch)
