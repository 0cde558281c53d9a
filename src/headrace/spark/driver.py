"""The driver of a job: it opens epochs, runs queries, and commits each batch."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import (
    BatchTimeoutError,
    HeadraceError,
    JavaEndedError,
    JobFailedError,
    RollbackError,
)
from headrace.failpoints import failpoint
from headrace.protocol.transactions import CommitRecord, Position, StateSummary, stored_positions
from headrace.runtime.commit.drivers import DriverName
from headrace.runtime.commit.transactions import BatchEnd
from headrace.runtime.control import Block, BlockKind, Summary, place_of
from headrace.runtime.event_time.silence import committed_time
from headrace.runtime.planning import starting_offsets
from headrace.runtime.standing import IN, OUT
from headrace.runtime.state.steps import Migrations, settled_record
from headrace.runtime.time_limit import (
    FailureRecord,
    after_failure,
    given_up,
    hanging_line,
    patience,
    read_traces,
)
from headrace.runtime.user_code import raise_failure
from headrace.spark.causes import TaskWatch
from headrace.spark.dead_session import end_session, forget_dead_session
from headrace.spark.resident import run_resident
from headrace.spark.session import checkpoint_folder, get_session, log_file
from headrace.spark.source import QueryStart, blocks_of, failure_of, run_query
from headrace.spark.ticks import Batch, Ticks, run_ticking

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from headrace.runtime.job_plan import JobConnection
    from headrace.spark.statistics import PlanHandle


# From the summaries of a batch to its commit.
#
# Pure functions: blocks in, a :class:`~headrace.runtime.commit.transactions.BatchEnd` out.  They
# refuse a batch with a missing or doubled summary, or with mixed attempts, so that nothing
# half-processed is ever committed.


def assemble(
    last: CommitRecord,
    epoch: int,
    blocks: Iterable[Block],
    stages: int,
    clock: int,
    elsewhere: Callable[[], Collection[str]] | None = None,
) -> tuple[BatchEnd, list[Summary]]:
    """Return the commit of a batch, made from the reports of its tasks.

    Parameters
    ----------
    last
        The record that the batch builds on.
    epoch
        The driver's epoch.
    blocks
        All blocks that reached the driver.
    stages
        Number of stages of the topology.
    clock
        The wall clock, in ms since 1970.
    elsewhere
        Returns the outside partitions that commit records of other jobs have too; None if that is
        not known.

    Raises
    ------
    HeadraceError
        A task met a failure that no retry can mend.
    RollbackError
        The parts of the batch were not computed from one another.
    """
    summaries: list[Summary] = []
    for block in sorted(blocks, key=lambda block: block.kind is not BlockKind.FAILURE):
        if block.kind is BlockKind.FAILURE:
            raise_failure(block.payload)
        summaries.append(msgspec.json.decode(block.payload, type=Summary))
    ends = _check_complete(summaries, stages, last.partitions)
    _check_attempts(summaries, last.batch + 1)
    _check_tuples(summaries)
    record = committed_time(last, summaries).committed(
        epoch,
        clock,
        offsets={**last.offsets, **ends},
        states=_carried_over(last.states, summaries),
        counters=_added_up(last.counters, summaries),
        stored_positions=_moved(last, summaries, elsewhere),
    )
    parts = [summary.part for summary in summaries if summary.part.records]
    return BatchEnd(previous=last.batch, parts=parts, record=record), summaries


def _check_complete(summaries: list[Summary], stages: int, partitions: int) -> dict[str, int]:
    """Return the offsets where the batch ends, once every task has reported exactly once."""
    found = Counter((summary.part.stage, summary.part.partition) for summary in summaries)
    heads = [summary for summary in summaries if summary.ends is not None]
    splits = heads[0].splits if heads else 1
    expected = {(0, split) for split in range(splits)} | {
        (stage, partition) for stage in range(1, stages) for partition in range(partitions)
    }
    if set(found) != expected or any(count > 1 for count in found.values()) or len(heads) != 1:
        missing = sorted(expected - set(found))
        surplus = sorted(
            place for place, count in found.items() if count > 1 or place not in expected
        )
        raise JobFailedError(
            f"a batch came back incomplete: (stage, partition) missing {missing}, doubled or"
            f" unexpected {surplus}",
            hint="nothing of it was committed; please report this with the driver's log",
        )
    ends = heads[0].ends
    assert ends is not None
    return ends


def _check_attempts(summaries: list[Summary], batch: int) -> None:
    """Raise for a batch in which a task took other blocks than the counted attempts made.

    Spark runs some tasks of a stage again if it has lost their blocks.  A task that uses random
    numbers or a clock then makes other blocks, and tasks that took the old ones do not run again.
    """
    # A resident task has one number for all of its stages and partitions.
    made: dict[str, Counter[int]] = defaultdict(Counter)
    for summary in summaries:
        for place, count in summary.blocks_sent.items():
            made[place][summary.part.attempt] += count
    for summary in summaries:
        part = summary.part
        counted = made[place_of(part.stage, part.partition)]
        if summary.blocks_taken != counted:
            raise RollbackError(
                f"batch {batch} mixes attempts: partition {part.partition} of stage {part.stage}"
                f" took blocks of the attempts {_shown(summary.blocks_taken)}, and those that count"
                f" made {_shown(counted)}",
                hint="nothing of it was committed; Spark lost the blocks of a task and ran it"
                " again: look for executors that were lost",
                batch=batch,
            )


def _shown(blocks: dict[int, int]) -> str:
    found = ", ".join(f"{attempt} ({count})" for attempt, count in sorted(blocks.items()))
    return found or "none"


def _check_tuples(summaries: list[Summary]) -> None:
    """Raise for a batch in which a bolt took more or fewer tuples than were sent to it."""
    sent: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    for summary in summaries:
        sent.update(summary.tuples_sent)
        taken.update(summary.tuples_taken)
    for place in sorted(name for name in {*sent, *taken} if sent[name] != taken[name]):
        bolt, _, port = place.rpartition(":")
        raise JobFailedError(
            f"bolt '{bolt}' took {taken[place]} tuples by its subscription {port}, and"
            f" {sent[place]} were sent",
            hint="nothing of the batch was committed; please report this with the driver's log",
        )


def _moved(
    last: CommitRecord,
    summaries: list[Summary],
    elsewhere: Callable[[], Collection[str]] | None,
) -> dict[str, Position] | str:
    """Return the positions in outside systems, without partitions that are gone.

    A partition that is gone stays, marked as such, while a record of another job still has it.
    """
    if not any(summary.positions for summary in summaries):
        return last.stored_positions
    moved = dict(last.positions)
    for summary in summaries:
        moved |= summary.positions
    gone = {name for name, position in moved.items() if position.offset is None}
    if gone and elsewhere is not None:
        gone -= set(elsewhere())
        moved = {name: position for name, position in moved.items() if name not in gone}
    return stored_positions(moved)


def _carried_over(last: list[StateSummary], summaries: list[Summary]) -> list[StateSummary]:
    states = {(state.store, state.partition): state for state in last}
    for summary in summaries:
        states.update({(state.store, state.partition): state for state in summary.states})
    return [states[place] for place in sorted(states)]


def _added_up(last: dict[str, int], summaries: list[Summary]) -> dict[str, int]:
    totals = Counter(last)
    for summary in summaries:
        totals.update(summary.counters)
        totals.update({f"{IN}:{name}": count for name, count in summary.records.items()})
        totals.update({f"{OUT}:{name}": count for name, count in summary.given.items()})
    return dict(totals)


logger = logging.getLogger(__name__)

#: How long a Java process that is no longer needed may take to end.
_LAST_WORDS = timedelta(seconds=30)


class JobDriver:
    """Runs a job's batches and commits them; after a failure it retries from the last commit.

    Parameters
    ----------
    connection
        The job.
    handle
        Its plan, for the tasks.
    queues
        Writable queues of the topics that the job writes.
    migrations
        What to do with the state of operators that were renamed or changed.
    committed
        Called with each commit and the summaries of its tasks.
    ticks
        What begins batches if this process plans them; None if a data source plans them.
    """

    def __init__(
        self,
        connection: JobConnection,
        handle: PlanHandle,
        queues: dict[str, list[str]],
        migrations: Migrations,
        committed: Callable[[CommitRecord, list[Summary]], None],
        ticks: Ticks | None = None,
    ) -> None:
        #: The name under which it opens epochs and holds the lease.
        self.name = str(DriverName.here())
        self._connection = connection
        self._handle = handle
        self._queues = queues
        self._migrations = migrations
        self._committed = committed
        self._ticks = ticks
        self._progress = threading.Condition()
        self._settings = connection.plan.settings
        self._log = str(log_file(self._settings))
        self._watch = TaskWatch(connection.plan.job, self._log)
        self._stages = len(connection.plan.stages.stages)
        self._epoch = 0
        #: The first epoch of this driver.
        self._life = 0
        self._stopping = threading.Event()
        #: The query that is running, or was last.
        self._run = _QueryRun(0)
        #: The last commit.
        self.record: CommitRecord | None = None
        #: The error that ended the job, if any.
        self.failure: HeadraceError | None = None
        #: How often the job went on after a failure.
        self.restarts = 0

    @property
    def epoch(self) -> int:
        """The epoch that this driver opened last."""
        return self._epoch

    def stalled(self) -> float:
        """Return for how many seconds nobody has checked on the running query.

        It is 0 without a query: then the driver starts Spark, waits for a lease or a broker, or
        publishes, and all of that may take long.
        """
        looked = self._run.looked
        return 0.0 if looked is None else time.monotonic() - looked

    def open(self) -> None:
        """Begin a new epoch on top of the last commit."""
        connection = self._connection
        failpoint("job.before_open")
        answer = connection.transactions.open(self.name)
        failpoint("job.opened")
        record = settled_record(
            connection.state_home, answer.record, connection.plan, self._migrations
        )
        last = self.record
        if last is not None and record.batch == last.batch:
            # Without a commit since, it starts where it started before, even at "latest".
            record = msgspec.structs.replace(record, offsets=last.offsets)
        offsets = starting_offsets(connection, record, restarted=last is not None)
        self.record = msgspec.structs.replace(record, offsets=offsets)
        if record.batch:
            # The driver before this one may have committed a batch without publishing it.
            connection.transactions.publish(record)
        self._epoch = answer.epoch
        self._life = self._life or answer.epoch

    def supervise(self) -> None:
        """Run until :meth:`stop`, or until a failure that no retry can mend."""
        standing = FailureRecord()
        opened = True
        while not self._stopping.is_set():
            try:
                if not opened:
                    self.open()
                opened = True
                self._run_query()
                return
            except HeadraceError as error:
                retry = after_failure(self._settings.rollback_retries, standing, self.batch, error)
                if self._stopping.is_set():
                    return
                if retry is None:
                    self.failure = given_up(self._settings.rollback_retries, self.batch, error)
                    return
                standing, opened = retry.standing, False
                # Spark replaces a lost task of a micro-batch by itself, and no resident one.
                at_once = self._settings.executor == "resident" and standing.failures == 1
                self._roll_back(0.0 if at_once else retry.pause, error)
            except Exception as error:  # noqa: BLE001 - the thread's end must tell the caller
                self.failure = JobFailedError(f"job '{self._job}' failed: {error}")
                return

    def fail(self, error: BaseException) -> None:
        """End the job because something that it needs has failed; from any thread."""
        if self.failure is None:
            what = f"{type(error).__name__}: {error}"
            self.failure = JobFailedError(f"job '{self._job}' failed: {what}")
            self.failure.__cause__ = error
        self.stop()

    def stop(self) -> None:
        """Make :meth:`supervise` return."""
        self._stopping.set()
        self._run.ends.set()
        self._connection.transactions.give_up()

    @property
    def _job(self) -> str:
        return self._connection.plan.job

    @property
    def batch(self) -> int:
        """The last committed batch."""
        return self.record.batch if self.record else 0

    def _roll_back(self, pause: float, error: HeadraceError) -> None:
        logger.warning("job %s goes back to batch %d after: %s", self._job, self.batch, error)
        self.restarts += 1
        self._stopping.wait(pause)
        if isinstance(error, JavaEndedError):
            end_session(_LAST_WORDS)
        if forget_dead_session():
            logger.warning("job %s starts Spark again", self._job)

    def _run_query(self) -> None:
        assert self.record is not None
        launch = QueryStart(
            handle=self._handle,
            epoch=self._epoch,
            life=self._life,
            record=msgspec.json.encode(self.record),
            queues=self._queues,
            splits=self._settings.partitions,
        )
        run = self._run = _QueryRun(self._epoch)
        if self._stopping.is_set():
            run.ends.set()
        with checkpoint_folder() as folder:
            try:
                self._query(run, launch, folder)
            except Exception as error:
                if run.failure is None:
                    failure = failure_of(self._job, error, self._log)
                    if failure is error:
                        # An error that is raised from itself would be its own cause.
                        raise
                    raise failure from error
            finally:
                with self._progress:
                    # Whatever its batch function still does comes too late and changes nothing.
                    run.over = True
                run.looked = None
        if run.failure is not None:
            raise run.failure

    def _query(self, run: _QueryRun, launch: QueryStart, checkpoint: str) -> None:
        settings = self._settings
        start: Callable[..., None]
        on_batch: Callable[..., None] = partial(self._on_batch, run)
        if self._ticks is None and settings.executor == "resident":
            start = partial(run_resident, plan=self._connection.plan, committed=self._await_batch)
            on_batch = partial(self._run_batch, run)
        elif self._ticks is None:
            start = partial(
                run_query, partitions=settings.partitions, interval=settings.commit_interval
            )
        else:
            start = partial(run_ticking, ticks=self._ticks, committed=self._await_batch)
        start(
            get_session(self._settings, self._job),
            launch,
            stages=self._stages,
            checkpoint=checkpoint,
            on_batch=on_batch,
            wait=partial(self._wait, run),
        )

    def _await_batch(self, batch: int, seconds: float) -> bool:
        with self._progress:
            return self._progress.wait_for(lambda: self.batch >= batch, seconds)

    def _wait(self, run: _QueryRun, seconds: float) -> bool:
        """Wait for the query's end; raise for a batch that its alarm could not interrupt."""
        run.looked = None
        if run.ends.wait(seconds):
            return True
        limit = patience(self._settings.batch_timeout.total_seconds())
        began = run.began
        # Time without an executor does not count against the batch's limit.
        if began is None or time.monotonic() - max(began, self._watch.alone_at) <= limit:
            run.looked = time.monotonic()
            failure = self._watch.look()
            if failure is None:
                return False
            run.failure = failure
            raise failure
        run.failure = self._overdue(limit)
        raise run.failure

    def _overdue(self, limit: float) -> BatchTimeoutError:
        plan, batch = self._connection.plan, self.batch + 1
        lines = map(hanging_line, read_traces(plan.state_root, time.time() - limit))
        line = next((line for line in lines if line is not None), None)
        return BatchTimeoutError(
            f"batch {batch} of job '{plan.job}' did not end within {limit:g} s, and no alarm could"
            " interrupt it" + ("" if line is None else f"\n  it was at {line}"),
            hint="look for calls that never return from compiled code; if a batch may take that"
            " long, raise batch_timeout or lower max_records_per_batch",
            batch=batch,
            line=line,
        )

    def _on_batch(self, run: _QueryRun, frame: Batch, _: int) -> None:
        """Run a batch of a query: to collect its rows is its only action."""

        def collect() -> list[Block]:
            return [block for batch in frame.toArrow().to_batches() for block in blocks_of(batch)]

        self._run_batch(run, collect)

    def _run_batch(self, run: _QueryRun, collect: Callable[[], list[Block]]) -> None:
        """Collect the reports of the tasks, which runs them, and commit them.

        A failure is kept for the supervisor, which stops the query.  If it were raised here, it
        would come back as text inside two of Spark's own errors.
        """
        if run.is_ending():
            return
        try:
            run.began = time.monotonic()
            blocks = collect()
            run.began = None
            if blocks and not run.is_ending():
                self._commit(run, blocks)
        except HeadraceError as error:
            if not run.is_ending():
                run.failure = error
                run.ends.set()
        except Exception:
            # The errors of a query that is being ended are already known, and pages long.
            if not run.is_ending():
                raise
        finally:
            run.began = None

    def _commit(self, run: _QueryRun, blocks: list[Block]) -> None:
        assert self.record is not None
        clock = int(time.time() * 1000)
        elsewhere = None if self._ticks is None else self._ticks.elsewhere
        end, summaries = assemble(self.record, run.epoch, blocks, self._stages, clock, elsewhere)
        transactions = self._connection.transactions
        failpoint("job.before_commit")
        transactions.commit(end)
        failpoint("job.after_commit")
        transactions.publish(end.record)
        failpoint("job.published")
        with self._progress:
            if run.over:
                # The commit counts, and the next epoch goes on from it.
                return
            self.record = end.record
            self._progress.notify_all()
        self._committed(end.record, summaries)


class _QueryRun:
    """One query, from start to end; its batch function may outlive it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        #: Set when the query must end.
        self.ends = threading.Event()
        #: Whether it has ended, or nobody waits for it any more.
        self.over = False
        #: The error that ends it, if the driver knows it better than Spark.
        self.failure: HeadraceError | None = None
        #: When the tasks of the running batch began, by the monotonic clock.
        self.began: float | None = None
        #: When it was last looked at, by the monotonic clock; None while nobody does.
        self.looked: float | None = None

    def is_ending(self) -> bool:
        """Return whether the work of its batch function is no longer wanted."""
        return self.over or self.failure is not None or self.ends.is_set()
