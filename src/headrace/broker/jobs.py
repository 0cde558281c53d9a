"""Jobs: who may commit, and what, by the newest record of each job's commit topic.

No I/O: a request is judged against what is known, and either refused, answered from memory, or
turned into the record to append; the caller appends it and reports back with
:meth:`JobBook.recorded`.  Between the two no other request of the same job may be judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace import errors
from headrace.broker.topics import check_topic_name
from headrace.protocol.transactions import (
    COMMIT_TOPIC_SUFFIX,
    CommitAnswer,
    CommitRecord,
    CommitRequest,
    OpenRequest,
    StagedPart,
    split_queue_name,
)

#: Brokers number the messages of a queue with 64 bits.
_MOST_MESSAGES = 1 << 63
_RESTORE = (
    "Put the broker's folder back from a copy, or promote a follower that has the commit. To begin"
    " anew and read all again: delete topic {0!r} and the job's topics {1}-*-stateTopic (headrace"
    " topic delete); what it put out stays."
)
_STOP = "Another driver runs this job now; stop this one."

Staged = Callable[[StagedPart], tuple[int, int]]
"""Returns how many chunks and records are held of a part, or came with the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Where a job stands."""

    #: Newest record of the commit topic.
    record: CommitRecord
    #: Followers that have the commit log up to here have that record, its unit whole.
    position: int
    #: Who opened the current epoch.
    driver: str = ""
    #: The account that the job belongs to; none where nobody was asked who they are.
    owner: str = ""
    #: Whether the primary that it was opened at was replaced, and may have had messages that are
    #: not here: nothing more can be committed in this epoch.
    is_over: bool = False


class JobBook:
    """All jobs that this broker knows, by commit topic.

    Examples
    --------
    >>> book = JobBook()
    >>> request = OpenRequest(job="j", commit_topic="j-commitTopic", driver="host:1")
    >>> record = book.open(request, now=0)
    >>> book.recorded("j-commitTopic", JobState(record=record, position=100))
    >>> record.epoch, book.state("j-commitTopic").record.batch
    (1, 0)
    """

    def __init__(self) -> None:
        self._states: dict[str, JobState] = {}
        self._topics: dict[str, str] = {}
        #: Commit topics whose newest record is lost, and its offset.
        self._lost: dict[str, int] = {}

    def state(self, commit_topic: str) -> JobState | None:
        """Return where the job of a commit topic stands, None before its first open."""
        return self._states.get(commit_topic)

    def items(self) -> Iterator[tuple[str, JobState]]:
        """Iterate over commit topics and where their jobs stand."""
        return iter(sorted(self._states.items()))

    def recorded(self, commit_topic: str, state: JobState) -> None:
        """Take note of the newest record of a commit topic."""
        self._states[commit_topic] = state
        self._topics[state.record.job] = commit_topic
        self._lost.pop(commit_topic, None)

    def lose(self, commit_topic: str, offset: int) -> None:
        """Take note that the newest record of a commit topic is lost: its job stays closed."""
        self.forget(commit_topic)
        self._lost[commit_topic] = offset

    def forget(self, commit_topic: str) -> None:
        """Drop a job whose commit topic was deleted."""
        self._lost.pop(commit_topic, None)
        state = self._states.pop(commit_topic, None)
        if state is not None:
            self._topics.pop(state.record.job, None)

    def open(self, request: OpenRequest, *, now: int) -> CommitRecord:
        """Make the record that begins the next epoch of a job.

        Raises
        ------
        InvalidParameterError
            When the commit topic cannot be the job's.
        FencedError
            When the driver goes back from an epoch that is not the newest any more.
        CommitLostError
            When the newest record of the commit topic is lost, or all are that the driver knows.
        """
        topic = request.commit_topic
        self.check_not_lost(request.job, topic)
        check_commit_topic(request.job, topic)
        state = self._states.get(topic)
        if state is None:
            if request.after:
                raise _lost(request.job, topic, f"of epoch {request.after}")
            return CommitRecord(job=request.job, kind="open", epoch=1, batch=0, timestamp=now)
        _check_owner(topic, state.record.job, request.job)
        self._check_not_replaced(request, state)
        # An epoch that this broker has lost is not begun a second time.
        epoch = max(state.record.epoch, request.after) + 1
        return state.record.opened(epoch, state.record.timestamp)

    def check_stage(self, job: str, epoch: int, batch: int) -> None:
        """Refuse to stage what can never be committed.

        Raises
        ------
        FencedError
            When the epoch is not the job's current one.
        PredecessorMismatchError
            When the batch is committed already.
        """
        topic = self._topics.get(job)
        record = None if topic is None else self._states[topic].record
        self._check_epoch(job, epoch, record, f"stage for batch {batch}")
        if record is not None:
            _check_is_next(job, batch, record.batch)

    def commit(self, request: CommitRequest) -> CommitAnswer | None:
        """Judge a commit: None means that it may be appended once its parts are complete.

        A repeated request is answered as the first one was, but for ``already``.  Caller: whoever
        has asked :func:`check_commit`.

        Raises
        ------
        FencedError
            When the epoch is not the job's current one.
        PredecessorMismatchError
            When the batch does not follow the last committed one.
        InputMissingError
            When the batch may have been read from a broker that was replaced since.
        CommitLostError
            When the newest record of the commit topic is lost.
        """
        record, topic = request.record, request.commit_topic
        self.check_not_lost(record.job, topic)
        state = self._states.get(topic)
        newest = None if state is None else state.record
        if newest is not None:
            _check_owner(topic, newest.job, record.job)
        self._check_epoch(record.job, record.epoch, newest, f"commit batch {record.batch}")
        if state is not None and record.repeats(state.record):
            return CommitAnswer(batch=record.batch, already=True, position=state.position)
        if state is not None and state.is_over:
            message = f"epoch {record.epoch} of job {record.job!r} was open when this broker took"
            message += f" the place of another: what batch {record.batch} has read may differ here"
            hint = "The job goes back to its last commit, and opens a new epoch."
            raise errors.InputMissingError(message, hint=hint)
        _check_follows(request, 0 if newest is None else newest.batch)
        return None

    def owner(self, job: str) -> str:
        """Return the account that a job belongs to; empty where it belongs to none."""
        state = self._states.get(job + COMMIT_TOPIC_SUFFIX)
        return "" if state is None else state.owner

    def check_owner(self, job: str, account: str | None) -> None:
        """Refuse an account that works on a job of another one; None may work on all.

        Raises
        ------
        NoPermissionError
            The job belongs to somebody else.
        """
        owner = self.owner(job)
        if account is not None and owner not in ("", account):
            message = f"job {job!r} belongs to the account {owner!r}, not to {account!r}"
            hint = f"An admin can give it away: headrace job give {job} {account}"
            raise errors.NoPermissionError(message, hint=hint)

    def check_not_lost(self, job: str, commit_topic: str) -> None:
        """Refuse a job of which nobody knows what it has published: it would publish again.

        Raises
        ------
        CommitLostError
            When the newest record of the commit topic is lost.
        """
        offset = self._lost.get(commit_topic)
        if offset is not None:
            raise _lost(job, commit_topic, f"offset {offset}")

    def _check_not_replaced(self, request: OpenRequest, state: JobState) -> None:
        """Refuse a driver that slept and would take the job back from its successor."""
        newest = state.record.epoch
        # An epoch of its own that it does not know of: the answer was lost.
        lost = state.driver == request.driver
        if 0 < request.after < newest and not lost:
            message = f"job {request.job!r} was taken over: epoch {newest} is open by"
            message += f" {state.driver or 'another driver'}, this one had epoch {request.after}"
            raise errors.FencedError(message, hint=_STOP)

    def _check_epoch(self, job: str, epoch: int, newest: CommitRecord | None, what: str) -> None:
        if newest is None:
            message = f"job {job!r} cannot {what} in epoch {epoch}: it was never opened"
            hint = "Open the job first (OPEN_JOB)."
            raise errors.InvalidParameterError(f"{message} at this broker", hint=hint)
        if epoch > newest.epoch:
            message = f"job {job!r} cannot {what} in epoch {epoch}: the newest is {newest.epoch}"
            hint = "It has lost what was written since, or another took its place that it cannot reach."
            raise errors.InputMissingError(f"{message} at this broker", hint=hint)
        if epoch < newest.epoch:
            message = f"job {job!r} cannot {what} in epoch {epoch}: epoch {newest.epoch} is open"
            raise errors.FencedError(message, hint=_STOP)


def check_commit_topic(job: str, commit_topic: str) -> None:
    """Refuse a commit topic that is not the one of the job's name.

    Raises
    ------
    InvalidParameterError
        It could be another job's, or nobody would find it after a restart.
    """
    expected = job + COMMIT_TOPIC_SUFFIX
    if not job or commit_topic != expected:
        message = f"{commit_topic[:300]!r} cannot be the commit topic of job {job[:200]!r}"
        raise errors.InvalidParameterError(message, hint=f"It is {expected[:300]!r}.")
    check_topic_name(expected)


def check_parts(request: CommitRequest, staged: Staged) -> None:
    """Refuse a commit of which not every part is held, whole.

    Raises
    ------
    StagedPartMissingError
        Names the first part that is not complete.
    """
    for part in request.parts:
        held = staged(part) if part.chunks or part.sections else (0, 0)
        if held != (part.chunks, part.records):
            message = (
                f"batch {request.record.batch} of job {request.record.job!r}: of stage"
                f" {part.stage}, partition {part.partition}, attempt {part.attempt} the broker"
                f" holds {held[0]} of {part.chunks} chunks and {held[1]} of {part.records} records"
            )
            raise errors.StagedPartMissingError(
                message, hint="Process the batch anew and stage it again."
            )


def _lost(job: str, commit_topic: str, which: str) -> errors.CommitLostError:
    message = f"job {job!r} stays closed: its newest commit, {which} of topic"
    message += f" {commit_topic!r}, is lost, and so is what it has published by then"
    return errors.CommitLostError(message, hint=_RESTORE.format(commit_topic, job))


def _check_owner(topic: str, owner: str, job: str) -> None:
    if owner != job:
        message = f"commit topic {topic!r} belongs to job {owner!r}, not to {job!r}"
        raise errors.InvalidParameterError(
            message, hint="Give every job a commit topic of its own."
        )


def _check_is_next(job: str, batch: int, last: int) -> None:
    if batch <= last:
        message = f"batch {batch} of job {job!r} is committed: nothing more can be staged for"
        raise errors.PredecessorMismatchError(f"{message} it (the last one is {last})")


def _check_follows(request: CommitRequest, last: int) -> None:
    record = request.record
    if request.previous != last:
        message = f"batch {record.batch} of job {record.job!r} builds on batch"
        message += f" {request.previous}, but the last committed one is {last}"
        hint = "Ask where the job stands (PLAN_BATCH) and go on from there."
        raise errors.PredecessorMismatchError(message, hint=hint)


def check_commit(request: CommitRequest) -> None:
    """Refuse a commit that contradicts itself.

    Raises
    ------
    InvalidParameterError
        Names the contradiction.
    """
    record = request.record
    where = f"the commit of batch {record.batch} of job {record.job!r}"
    if record.kind != "commit":
        raise errors.InvalidParameterError(f"{where} carries a record of kind {record.kind!r}")
    if record.batch != request.previous + 1:
        raise errors.InvalidParameterError(f"{where} says it builds on batch {request.previous}")
    check_commit_topic(record.job, request.commit_topic)
    for queue, offset in record.offsets.items():
        if split_queue_name(queue) is None or not 0 <= offset < _MOST_MESSAGES:
            message = f"{where} says that queue {queue!r} is read up to {offset}"
            hint = "A queue is named topic@broker@queue-id, and its offsets begin at 0."
            raise errors.InvalidParameterError(message, hint=hint)
    places = [(part.stage, part.partition) for part in request.parts]
    if len(set(places)) != len(places):
        twice = min(place for place in set(places) if places.count(place) > 1)
        message = f"{where} names two attempts of stage {twice[0]}, partition {twice[1]}"
        raise errors.InvalidParameterError(message)
