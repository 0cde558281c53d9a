"""What becomes of a record that failed: logged, left out, kept as a dead letter, or the end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from headrace.connect.handling.counters import Counters
from headrace.connect.handling.dead_letters import DeadLetter, dead_letter
from headrace.connect.handling.retrying import Retrying
from headrace.connect.handling.rows import Message, RowRef
from headrace.connect.handling.stages import Stage

if TYPE_CHECKING:
    from headrace.connect.config import Masking
    from headrace.connect.handling.policy import ErrorPolicy
    from headrace.connect.records import SourceRecord

__all__ = ["SKIPPED", "Failure", "Handling", "Origin", "Skipped"]

Origin: TypeAlias = "RowRef | Message | SourceRecord"
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
"""What a step gives for a record that is left out."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One record that failed for good, in one stage."""

    connector: str
    task: int
    stage: Stage
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
        Waits so many seconds; tells whether the task has been asked to stop meanwhile.
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
        clock: Callable[[], float] = time.monotonic,
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
        stage: Stage,
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

    def failed(self, stage: Stage, executing: object, error: Exception, origin: Origin) -> Skipped:
        """Do with a record that failed for good what the policy says.

        Raises
        ------
        Exception
            The error itself, with a note, when the policy does not tolerate it.
        """
        put = stage is Stage.TASK_PUT
        tolerates = self.policy.tolerates_put if put else self.policy.tolerates
        key = "errors.put.tolerance" if put else "errors.tolerance"
        return self._finish(stage, executing, error, origin, key=None if tolerates else key)

    def report(self, executing: object, error: Exception, origin: RowRef | Message) -> None:
        """Take a record that a sink task itself found to be bad.

        Raises
        ------
        Exception
            The error itself, when the policy tolerates neither bad records nor failed puts.
        """
        self.counters.failures += 1
        tolerates = self.policy.tolerates or self.policy.tolerates_put
        key = None if tolerates else "errors.tolerance"
        self._finish(Stage.TASK_PUT, executing, error, origin, key=key)

    def _finish(
        self,
        stage: Stage,
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
        """Give the dead letters since the last call, to be sent before the batch is committed."""
        letters, self._letters = self._letters, []
        return letters

    def _keep(self, failure: Failure, origin: Message | SourceRecord) -> None:
        topic = self.policy.dead_letter_topic
        if not topic or not isinstance(origin, Message):
            return
        context = self.policy.context_headers
        self._letters.append(
            dead_letter(origin, failure, topic, context=context, masking=self._masking)
        )
        self.counters.dead_letters += 1

    def _log(self, failure: Failure, origin: Message | SourceRecord) -> None:
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


def _place(origin: Message | SourceRecord) -> str:
    if isinstance(origin, Message):
        queue = origin.queue
        return f"{queue.topic}, {queue.broker}, queue {queue.queue_id}, offset {origin.offset}"
    return f"{dict(origin.partition)} at {dict(origin.offset)}"
