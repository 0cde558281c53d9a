"""A warm second driver, which has all that a start needs except the epoch."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from headrace.client import Admin
from headrace.errors import HeadraceError
from headrace.runtime.commit.drivers import DriverName, Lease
from headrace.runtime.control import SUMMARY_STAGE, Block, BlockKind
from headrace.runtime.state.home import StateFollower, StateHome, claimed
from headrace.spark.cluster import Prepared, is_cluster
from headrace.spark.session import checkpoint_folder, get_session
from headrace.spark.source import ROW_SCHEMA, job_frame, rows_of
from headrace.spark.worker import connection, end_of_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.spark.statistics import PlanHandle


# Empty batches, which warm up Spark and its Python workers so that a job's first batch is fast.
#
# A query of the job's own shape runs on a source without records.  Java loads and compiles what
# queries need; workers start, import what the job needs and connect to its cluster.

_WARMING_LOOK_SECONDS = 0.02


def warm_up(
    session: SparkSession,
    handle: PlanHandle,
    *,
    stages: int,
    partitions: int,
    batches: int,
    over: threading.Event,
) -> None:
    """Run some empty batches; stop early when ``over`` is set."""
    done: list[int] = []

    def take(frame: DataFrame, batch: int) -> None:
        frame.toArrow()
        done.append(batch)

    with checkpoint_folder() as folder:
        frame = job_frame(
            session, WarmSource, handle, stages, partitions, plan=handle, splits=partitions
        )
        query = frame.writeStream.foreachBatch(take).option("checkpointLocation", folder).start()
        try:
            while len(done) < batches and not over.wait(_WARMING_LOOK_SECONDS):
                if not query.isActive:
                    query.awaitTermination()
        finally:
            query.stop()


class WarmPartition(InputPartition):
    """The input of one task, which has no records."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class WarmSource(DataSource):
    """A source that always has another empty batch."""

    plan: PlanHandle
    splits: int

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "headrace-warm"

    def schema(self) -> str:
        """Return the schema of the rows."""
        return ROW_SCHEMA

    def streamReader(self, schema: StructType) -> WarmReader:
        """Return the reader."""
        return WarmReader(self.plan, self.splits)


class WarmReader(DataSourceStreamReader):
    """Plans empty batches, whose tasks get their worker ready for the job."""

    def __init__(self, handle: PlanHandle, splits: int) -> None:
        self._handle = handle
        self._splits = splits

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batch": start["batch"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [WarmPartition(number) for number in range(self._splits)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WarmPartition)
        connection(self._handle).get_ready()
        number = partition.number
        yield rows_of([Block(number, SUMMARY_STAGE, BlockKind.SUMMARY, "", 0, b"")])
        end_of_task()

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because there is nothing to commit."""


logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
#: Less than a minute, since Spark ends workers that are idle for that long.
_WARM_SECONDS = 25.0
#: The first batches let Java compile what a query needs; later ones keep workers.
_FIRST_BATCHES, _LATER_BATCHES = 4, 2


class Preparable(Protocol):
    """A job that can be prepared: a ``StreamJob`` or a ``TransactionJob``."""

    def prepare(self) -> list[Prepared]:
        """Do what a start needs before it opens an epoch."""


class Standby:
    """Keeps a job ready to start.

    Spark is running, its workers have imported the program and are connected, and the copies of the
    state follow the state topics, unless a driver on this machine keeps them up to date.

    Parameters
    ----------
    job
        The job, which has not been started.
    warm
        Warms up one group of the job with some empty batches.
    doubt
        For how many seconds a free lease is not trusted.  A broker that restarts forgets who has
        the lease, and the driver needs time to ask for it again.
    """

    def __init__(
        self,
        job: Preparable,
        *,
        warm: Callable[[Prepared, int, threading.Event], None] | None = None,
        doubt: float = 5.0,
    ) -> None:
        self._job = job
        self._warm = warm or _warm
        self._doubt = doubt

    def wait(
        self,
        go: threading.Event,
        *,
        alone: threading.Event,
        ready: Callable[[], None],
    ) -> bool:
        """Stay warm until it is time to start the job; return whether there was a driver before.

        Parameters
        ----------
        go
            Set when the driver is known to be dead.
        alone
            Set while nobody will set ``go``; then the job starts when the driver's lease ends.
        ready
            Called once, when everything is warm.

        Raises
        ------
        HeadraceError
            The job could not start, or cannot be kept warm.
        """
        prepared = self._job.prepare()
        # One process drives all groups of a topology, so the lease of one is enough.
        lease = _lease(prepared[0])
        before = DriverName.parse(self.driver())
        if before is not None and before.is_dead():
            lease.release_for(str(before))
        if alone.is_set() and lease.acquire():
            lease.release()
            return False
        warming = ThreadPoolExecutor(1, thread_name_prefix="headrace-warming")
        warm = warming.submit(self._keep_warm, prepared, go, ready)
        with warming, ExitStack() as opened:
            # After an error, too, the thread must end before the pool waits for it.
            opened.callback(go.set)
            followers = [_following(one, opened) for one in prepared]
            while not go.wait(_LOOK_SECONDS):
                if warm.done():
                    warm.result()
                for follow in followers:
                    follow()
                if alone.is_set() and _is_free(lease, prepared[0], self._doubt):
                    go.set()
        return True

    def driver(self) -> str:
        """Return the name of the driver that runs the job, or ran it last; empty if unknown."""
        connection = self._job.prepare()[0].connection
        client, plan = connection.client, connection.plan
        if plan.embedded:
            found = (job for job in Admin(client).jobs() if job.record.job == plan.job)
            return next((job.holder or job.driver for job in found), "")
        # It needs transactions of its own, because another thread uses the job's.
        transactions = plan.make_transactions(connection)
        try:
            record = transactions.plan([], {}, 0, 0).record
        finally:
            transactions.close()
        return "" if record is None else record.driver

    def _keep_warm(
        self, prepared: list[Prepared], go: threading.Event, ready: Callable[[], None]
    ) -> None:
        batches = _FIRST_BATCHES
        while not go.is_set():
            for one in prepared:
                self._warm(one, batches, go)
            if batches == _FIRST_BATCHES and not go.is_set():
                ready()
            batches = _LATER_BATCHES
            go.wait(_WARM_SECONDS)


def _warm(prepared: Prepared, batches: int, over: threading.Event) -> None:
    plan = prepared.connection.plan
    if is_cluster(plan.settings.master):
        # A cluster's cores belong to the present driver until it is gone.
        return
    warm_up(
        get_session(plan.settings, plan.job),
        prepared.handle,
        stages=len(plan.stages.stages),
        partitions=plan.settings.partitions,
        batches=batches,
        over=over,
    )


def _following(prepared: Prepared, opened: ExitStack) -> Callable[[], None]:
    """Return a function that brings the copies up to date, if nobody else does."""
    connection, plan = prepared.connection, prepared.connection.plan
    root = plan.state_root
    # A relative folder would be one in an executor's own working folder.
    here = root.is_absolute() and plan.stores is None
    if not here or not opened.enter_context(claimed(root)):
        return lambda: None
    # It needs transactions of its own, because the job's watch the lease.
    transactions = plan.make_transactions(connection)
    home = StateHome(plan.job, connection.client, transactions, tagged=not plan.embedded)
    follower = StateFollower(home, list(plan.state_topics), root)

    def follow() -> None:
        try:
            follower.follow()
        except HeadraceError as error:
            # Tasks open the copies again later, and raise errors that remain.
            logger.debug("the copies of job %s do not follow: %s", plan.job, error)

    return follow


def _lease(prepared: Prepared) -> Lease:
    owner = f"standby@{socket.gethostname()}:{os.getpid()}"
    return Lease(prepared.connection.client, prepared.connection.plan.job, owner)


def _is_free(lease: Lease, prepared: Prepared, doubt: float) -> bool:
    """Return whether the driver's lease has ended and nobody commits any more."""
    try:
        if not lease.acquire():
            return False
        before = _standing(prepared)
        time.sleep(doubt)
        # A broker that restarts forgets this lease too, and may have heard the driver first.
        if not lease.acquire():
            return False
        lease.release()
        return _standing(prepared) == before
    except HeadraceError as error:
        logger.debug("the lease cannot be looked at: %s", error)
        return False


def _standing(prepared: Prepared) -> tuple[int, int]:
    record = prepared.connection.transactions.plan([], {}, 0, 0).record
    return (0, 0) if record is None else (record.epoch, record.batch)
