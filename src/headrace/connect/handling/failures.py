"""What becomes of a record that failed: logged, left out, kept as a dead letter, or the end."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import pyarrow as pa

from headrace.connect.columns import SOURCE_SCHEMA
from headrace.connect.handling.conversion import RowRef, SinkRow
from headrace.connect.handling.retrying import Counters, ErrorPolicy, HandlingStage, Retrying
from headrace.connect.records import SinkRecord, SourceRecord

if TYPE_CHECKING:
    from headrace.connect.config import Masking
    from headrace.connect.predicates import Predicate
    from headrace.connect.transforms import Transform


# Dead letters: copies of records that failed, addressed to the dead-letter topic.

PREFIX: Final = "__connect.errors."
"""What the names of all context headers begin with."""

# All properties of a message must fit into 32 KB together.
_LONGEST_MESSAGE = 2000
_LONGEST_TRACE = 8000

# These two separate properties from each other in a message.
_SEPARATORS = str.maketrans({"\x01": " ", "\x02": " "})


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message for the dead-letter topic.

    Key and value are the bytes that were read, not what converters and transforms made of them.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    properties: Mapping[str, str]
    timestamp_ms: int | None


def dead_letter(
    message: SinkRow, failure: Failure, topic: str, *, context: bool, masking: Masking
) -> DeadLetter:
    """Make the copy of a message, with headers that say what happened to it."""
    properties = dict(message.properties)
    if context:
        properties |= _context(message, failure, masking)
    return DeadLetter(topic, message.key, message.value, properties, message.timestamp_ms)


def _context(message: SinkRow, failure: Failure, masking: Masking) -> dict[str, str]:
    error = failure.error
    kind = type(error)
    trace = "".join(traceback.format_exception(error))
    said = {
        "topic": message.queue.topic,
        "broker": message.queue.broker,
        "partition": str(message.queue.queue_id),
        "offset": str(message.offset),
        "connector.name": failure.connector,
        "task.id": str(failure.task),
        "stage": str(failure.stage),
        "class.name": failure.executing,
        "exception.class.name": f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": masking(str(error))[:_LONGEST_MESSAGE],
        # What was called last stands at the end.
        "exception.stacktrace": masking(trace)[-_LONGEST_TRACE:],
    }
    return {PREFIX + name: text.translate(_SEPARATORS) for name, text in said.items()}


def rows_of(letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Return dead letters as rows, in the columns that a source's records have."""
    columns = {
        "topic": [one.topic for one in letters],
        "queue": [None] * len(letters),
        "key": [one.key for one in letters],
        "value": [one.value for one in letters],
        "properties": [list(one.properties.items()) for one in letters],
        "timestamp": [one.timestamp_ms for one in letters],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SOURCE_SCHEMA)


Origin: TypeAlias = "RowRef | SinkRow | SourceRecord"
"""A record as it came."""

T = TypeVar("T")
A = TypeVar("A")

_LONGEST_RECORD = 4000


class Skipped:
    """Stands for a record that failed and is left out."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "SKIPPED"


SKIPPED: Final = Skipped()
"""What a step returns for a record that is left out."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One record that failed for good, in one stage."""

    connector: str
    task: int
    stage: HandlingStage
    #: The class whose code was running.
    executing: str
    error: Exception


class Handling:
    """Runs the steps of one task's records as its connector's policy says.

    Parameters
    ----------
    connector, task
        Whose records these are.
    policy
        What is done with those that fail.
    masking
        Hides the config's secrets in logs and dead letters.
    wait
        Waits so many seconds, and returns whether the task was asked to stop meanwhile.
    logger
        Where failures are logged.
    clock, chance
        Where the time and the jitter of retries come from.
    """

    def __init__(
        self,
        connector: str,
        task: int,
        policy: ErrorPolicy,
        *,
        masking: Masking,
        wait: Callable[[float], bool],
        logger: logging.Logger | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.policy = policy
        self.counters = Counters()
        self._connector = connector
        self._task = task
        self._masking = masking
        self._logger = logger or logging.getLogger(__name__)
        self._letters: list[DeadLetter] = []
        self.retrying = Retrying(policy.patience, self.counters, wait=wait, clock=clock)
        self.task_retrying = Retrying(policy.task_patience, self.counters, wait=wait, clock=clock)

    def step(
        self,
        stage: HandlingStage,
        executing: object,
        function: Callable[[A], T],
        argument: A,
        origin: Origin,
    ) -> T | Skipped:
        """Call ``function(argument)`` with the patience and the tolerance of the policy.

        Parameters
        ----------
        stage
            What is being done.
        executing
            Whose code is running.
        function, argument
            The step.
        origin
            The record as it came, for the log and the dead letter.

        Raises
        ------
        Exception
            What the step raised, when the policy does not tolerate it.
        """
        try:
            return function(argument)
        except Exception as error:  # noqa: BLE001 - raised again unless it is tolerated
            first = error
        try:
            return self.retrying.again(lambda: function(argument), first)
        except Exception as error:  # noqa: BLE001 - the same
            return self.failed(stage, executing, error, origin)

    def failed(
        self, stage: HandlingStage, executing: object, error: Exception, origin: Origin
    ) -> Skipped:
        """Do with a record that failed for good what the policy says.

        Raises
        ------
        Exception
            The error itself, with a note, when the policy does not tolerate it.
        """
        put = stage is HandlingStage.TASK_PUT
        tolerates = self.policy.tolerates_put if put else self.policy.tolerates
        key = "errors.put.tolerance" if put else "errors.tolerance"
        return self._finish(stage, executing, error, origin, key=None if tolerates else key)

    def report(self, executing: object, error: Exception, origin: RowRef | SinkRow) -> None:
        """Take a record that a sink task itself found to be bad.

        Raises
        ------
        Exception
            The error itself, when the policy tolerates neither bad records nor failed puts.
        """
        self.counters.failures += 1
        tolerates = self.policy.tolerates or self.policy.tolerates_put
        key = None if tolerates else "errors.tolerance"
        self._finish(HandlingStage.TASK_PUT, executing, error, origin, key=key)

    def _finish(
        self,
        stage: HandlingStage,
        executing: object,
        error: Exception,
        origin: Origin,
        *,
        key: str | None,
    ) -> Skipped:
        """Count and log a failure; then raise it, naming the key that would tolerate it, or skip."""
        failure = Failure(self._connector, self._task, stage, _name_of(executing), error)
        if isinstance(origin, RowRef):
            origin = origin.message()
        self.counters.errors += 1
        self.counters.last_error_ms = time.time_ns() // 1_000_000
        self._log(failure, origin)
        if key is not None:
            error.add_note(
                f"Tolerance exceeded in stage {stage} of {failure.executing}; {key}=all would go on"
            )
            raise error
        self.counters.skipped += 1
        self._keep(failure, origin)
        return SKIPPED

    def take_letters(self) -> list[DeadLetter]:
        """Return the dead letters since the last call, to be sent before the batch is committed."""
        letters, self._letters = self._letters, []
        return letters

    def _keep(self, failure: Failure, origin: SinkRow | SourceRecord) -> None:
        topic = self.policy.dead_letter_topic
        if not topic or not isinstance(origin, SinkRow):
            return
        context = self.policy.context_headers
        self._letters.append(
            dead_letter(origin, failure, topic, context=context, masking=self._masking)
        )
        self.counters.dead_letters += 1

    def _log(self, failure: Failure, origin: SinkRow | SourceRecord) -> None:
        if not self.policy.logs:
            return
        shown = f" The record: {origin!r:.{_LONGEST_RECORD}}" if self.policy.logs_records else ""
        what = f"{type(failure.error).__name__}: {failure.error}"
        self._logger.error(
            "%s-%s: a record of %s failed in stage %s of %s: %s%s",
            failure.connector,
            failure.task,
            _place(origin),
            failure.stage,
            failure.executing,
            self._masking(what),
            self._masking(shown),
        )
        self.counters.logged += 1


def _name_of(executing: object) -> str:
    kind: Any = executing if isinstance(executing, type) else type(executing)
    return f"{kind.__module__}.{kind.__qualname__}"


def _place(origin: SinkRow | SourceRecord) -> str:
    if isinstance(origin, SinkRow):
        queue = origin.queue
        return f"{queue.topic}, {queue.broker}, queue {queue.queue_id}, offset {origin.offset}"
    return f"{dict(origin.partition)} at {dict(origin.offset)}"


# The transforms of a task, each with the predicate that stands before it.

Record = TypeVar("Record", SourceRecord, SinkRecord)


@dataclass(frozen=True, slots=True)
class TransformLink:
    """One transform, and the records that it is for.

    Examples
    --------
    >>> from headrace.connect.predicates.record_is_tombstone import RecordIsTombstone
    >>> from headrace.connect.transforms.filter import Filter
    >>> link = TransformLink(Filter(), RecordIsTombstone(), negate=True)
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value=1)
    >>> link.apply(record)
    []
    """

    transform: Transform
    predicate: Predicate | None = None
    #: Whether it is for the records for which the predicate does not hold.
    negate: bool = False

    def apply(self, record: Record) -> Sequence[Record]:
        """Return what comes out: the record itself where the transform is not for it."""
        if self.predicate is not None and self.predicate.holds(record) is self.negate:
            return [record]
        given = self.transform.apply(record)
        if given is None:
            return []
        return [given] if isinstance(given, SourceRecord | SinkRecord) else given

    def close(self) -> None:
        """Close the transform and its predicate."""
        self.transform.close()
        if self.predicate is not None:
            self.predicate.close()


def transformed(
    links: Sequence[TransformLink],
    record: Record,
    origin: Origin,
    handling: Handling,
) -> Sequence[Record]:
    """Return what all transforms make of a record: nothing where it was dropped or left out."""
    records: Sequence[Record] = [record]
    for link in links:
        given: list[Record] = []
        for one in records:
            step = handling.step(
                HandlingStage.TRANSFORMATION, link.transform, link.apply, one, origin
            )
            # A record that failed takes along what it was split into before.
            if isinstance(step, Skipped):
                return []
            given += step
        if not given:
            return given
        records = given
    return records
