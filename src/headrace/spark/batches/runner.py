"""One sink that takes whole batches: from commit to commit, in a thread of its own.

The job's commits wait for nothing here: the thread only hears that there is a new one.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.client import MessageQueue, PullConsumer
from headrace.errors import HeadraceError, OffsetExpiredError, StateError
from headrace.failpoints import failpoint
from headrace.runtime.batches.cutting import Cutter
from headrace.runtime.batches.positions import Position, Positions
from headrace.spark.batches.status import BatchSinkStatistics
from headrace.watched import watched_thread

if TYPE_CHECKING:
    from headrace.runtime.batches.cutting import Cut
    from headrace.runtime.job_plan import JobConnection
    from headrace.topology import BatchSink

__all__ = ["BatchCall", "BatchRunner"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
#: A RocketMQ broker shows a commit record a moment after it took it.
_VISIBLE_SOON = 0.05
_LOOK_SECONDS = 1.0


class BatchCall(Protocol):
    """Runs the user's code on one batch."""

    def __call__(self, cut: Cut) -> None:
        """Hand a batch over, and return when that is done."""

    def interrupt(self) -> None:
        """Break off the call that runs, from another thread."""

    def close(self) -> None:
        """Let go of what was held between calls."""


class BatchRunner:
    """Hands the committed batches of one sink over, one after the other.

    Parameters
    ----------
    job
        Connection to the job's cluster.
    sink
        The sink.
    call
        Runs the user's code.
    """

    def __init__(self, job: JobConnection, sink: BatchSink, call: BatchCall) -> None:
        self.sink = sink
        self._job = job
        self._call = call
        self._positions = Positions(job.client, job.plan.job, sink)
        # Of its own: the job's are used by another thread.
        self._transactions = job.plan.make_transactions(job)
        self._consumer = PullConsumer(
            job.client, self._positions.group, committed=job.plan.reads_committed(sink.topic)
        )
        self._cutter = Cutter(self._consumer, exact=job.plan.shows_commits_only)
        self._begins: dict[str, int] = {}
        self._wanted = self._through = self._handed_over = self._failures = 0
        self._error: str | None = None
        self._since: float | None = None
        self._gave_up = False
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = watched_thread(
            self._run, name=f"headrace-batches-{sink.name}", on_failure=self._end
        )

    def start(self, batch: int) -> None:
        """Find the position and go on from there; ``batch`` is the last one committed.

        Raises
        ------
        OffsetExpiredError
            Records are gone that were never handed over.
        StateError
            The sink has done batches that the job has not committed.
        """
        queues = self._queues()
        position = self._positions.read()
        if position is None:
            position = Position(batch=batch, offsets=self._named(queues))
            self._positions.write(position)
        if position.batch > batch:
            raise StateError(
                f"{self.sink.label} '{self.sink.name}' of job '{self._job.plan.job}' has done batch"
                f" {position.batch}, and the job has committed {batch}: its commit topic was made"
                " anew",
                hint=f"delete {self.sink.topic} and {self.sink.done_topic} too, or start the job"
                " under a new name",
            )
        self._begins = dict(self._positions.begins(position, queues, skip=self._skips))
        self._through, self._wanted = position.batch, batch
        self._thread.start()

    def committed(self, batch: int) -> None:
        """Hear that a batch is committed."""
        self._wanted = batch
        self._wake.set()

    def has_done(self, batch: int) -> bool:
        """Tell whether everything up to a batch is handed over."""
        return self._through >= batch

    def ask_to_stop(self) -> None:
        """Begin no further call."""
        self._stopping.set()
        self._wake.set()

    def stop(self, deadline: float) -> None:
        """Wait for the call that runs, at most until a monotonic time; then break it off."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if self._thread.is_alive():
                self._call.interrupt()
                self._thread.join(_LOOK_SECONDS)
            if self._thread.is_alive():
                logger.warning("%s is left behind: it does not end", self._named_self)
        self._call.close()

    def statistics(self) -> BatchSinkStatistics:
        """Say how it stands."""
        since = self._since
        return BatchSinkStatistics(
            batch=self._through,
            batches=self._handed_over,
            running=None if since is None else timedelta(seconds=time.monotonic() - since),
            failures=self._failures,
            error=self._error,
            stopped=self._gave_up,
        )

    @property
    def _skips(self) -> bool:
        return self._job.plan.settings.on_expired_offset == "earliest"

    @property
    def _named_self(self) -> str:
        return f"{self.sink.label} '{self.sink.name}' of job '{self._job.plan.job}'"

    def _queues(self) -> list[MessageQueue]:
        return sorted(self._job.client.queues(self.sink.topic))

    def _named(self, queues: list[MessageQueue]) -> dict[str, int]:
        return {queue.name: at for queue, at in self._consumer.begin_offsets(queues).items()}

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._through >= self._wanted:
                self._wake.wait(_LOOK_SECONDS)
                self._wake.clear()
                continue
            try:
                found = self._step()
                self._failures, self._error = 0, None
                if not found and self._through < self._wanted:
                    self._stopping.wait(_VISIBLE_SOON)
            except OffsetExpiredError as error:
                if not self._goes_on(error):
                    return
            except Exception as error:  # noqa: BLE001 - the user's code raises what it likes
                self._failed(error)

    def _end(self, error: BaseException) -> None:
        self._gave_up, self._error = True, f"{type(error).__name__}: {error}"

    def _step(self) -> bool:
        """Hand the next batch over; tell whether there was one."""
        record = self._transactions.plan([], {}, 0, 0).record
        assert record is not None, "a job is opened before it commits"
        # On RocketMQ a batch is published after its commit.
        record = msgspec.structs.replace(record, batch=min(record.batch, self._wanted))
        queues = self._queues()
        ends = {queue.name: at for queue, at in self._consumer.end_offsets(queues).items()}
        begins = {**dict.fromkeys(ends, 0), **self._begins}
        cut = self._cutter.next(begins, ends, record)
        if cut is None:
            self._through = max(self._through, record.batch)
            return False
        # Messages of no batch are not ours.
        if cut.batch:
            self._hand_over(cut)
        self._begins = begins | {queue: end for queue, (_, end) in cut.ranges.items()}
        self._through = max(self._through, cut.batch)
        self._positions.write(Position(batch=self._through, offsets=self._begins))
        return True

    def _hand_over(self, cut: Cut) -> None:
        self._since = time.monotonic()
        try:
            self._call(cut)
        finally:
            self._since = None
        self._handed_over += 1
        failpoint("batches.called")

    def _failed(self, error: Exception) -> None:
        if self._stopping.is_set():
            return
        self._failures += 1
        self._error = str(error) or type(error).__name__
        pause = min(_FIRST_PAUSE * 2.0 ** min(self._failures - 1, 10), _LONGEST_PAUSE)
        logger.warning(
            "%s tries again in %g s after failure %d in a row: %s",
            self._named_self,
            pause,
            self._failures,
            self._error,
        )
        self._stopping.wait(pause)

    def _goes_on(self, missing: OffsetExpiredError) -> bool:
        """Go on at the first messages that are left, where the settings say so."""
        position = Position(batch=self._through, offsets=self._begins)
        try:
            begins = self._positions.begins(position, self._queues(), skip=self._skips)
        except HeadraceError as error:
            self._gave_up, self._error = True, str(error)
            logger.error("%s has stopped, the job goes on: %s", self._named_self, error)  # noqa: TRY400
            return False
        if begins == self._begins:
            # Nothing of ours is missing: the user's code met the like.
            self._failed(missing)
        self._begins = dict(begins)
        return True
