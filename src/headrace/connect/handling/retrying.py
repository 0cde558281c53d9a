"""Trying again: when, how often, and when no more.

:func:`after_failure` decides and nothing else; :class:`Retrying` has the clock and waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, TypeVar

from headrace.backoff import Backoff, jitter
from headrace.connect.config.chain import common_keys
from headrace.errors import ConnectorConfigError

# Counters of what failed, and what became of it.


@dataclass(frozen=True, slots=True)
class HandlingStatistics:
    """What failed in a task since it started."""

    #: Tries that failed, each of them.
    failures: int = 0
    #: Records, or whole calls, that failed for good: after all tries.
    errors: int = 0
    #: Records left out because the connector tolerates that.
    skipped: int = 0
    #: Tries after the first.
    retries: int = 0
    #: Failures written to the log.
    logged: int = 0
    #: Records handed over for the dead-letter topic.
    dead_letters: int = 0
    #: Records that could not be brought there.
    dead_letter_failures: int = 0
    #: When a record failed for good last, in milliseconds since 1970; 0: never.
    last_error_ms: int = 0

    def metrics(self) -> dict[str, int]:
        """Return the counters by the names that Kafka Connect has for them."""
        return {METRICS[name]: value for name, value in asdict(self).items()}


METRICS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "failures": "total-record-failures",
        "errors": "total-record-errors",
        "skipped": "total-records-skipped",
        "retries": "total-retries",
        "logged": "total-errors-logged",
        "dead_letters": "deadletterqueue-produce-requests",
        "dead_letter_failures": "deadletterqueue-produce-failures",
        "last_error_ms": "last-error-timestamp",
    }
)
"""Kafka Connect's names of the counters."""


class Counters:
    """Counts while a task runs; one thread writes, any may read.

    Examples
    --------
    >>> counters = Counters()
    >>> counters.retries += 1
    >>> counters.statistics().metrics()["total-retries"]
    1
    """

    def __init__(self) -> None:
        self.failures = 0
        self.errors = 0
        self.skipped = 0
        self.retries = 0
        self.logged = 0
        self.dead_letters = 0
        self.dead_letter_failures = 0
        self.last_error_ms = 0

    def statistics(self) -> HandlingStatistics:
        """Return the counts of this moment."""
        return HandlingStatistics(**vars(self))


# Stages: where on its way a record was when something failed.


class HandlingStage(StrEnum):
    """What was being done with a record, by the words of Kafka Connect's headers."""

    TASK_POLL = "TASK_POLL"
    TRANSFORMATION = "TRANSFORMATION"
    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"
    TASK_PUT = "TASK_PUT"


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long something is tried again.

    Parameters
    ----------
    budget
        Seconds from the first failure on; 0 tries once, ``None`` never gives up.
    longest
        Seconds of the longest pause.
    first
        Seconds of the first pause.
    """

    budget: float | None
    longest: float = 60.0
    first: float = 0.3


@dataclass(frozen=True, slots=True)
class Tries:
    """What has been tried so far."""

    #: When the first try failed.
    started: float
    #: How many tries failed.
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Again:
    """Try again after a pause."""

    pause: float
    tries: Tries


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not try again."""

    tries: Tries


def after_failure(
    tries: Tries, at: float, patience: Patience, *, retriable: bool, chance: float
) -> Again | GiveUp:
    """Decide what comes after a try that failed.

    Pauses double from the first to the longest, each cut by up to a half by chance, so that tasks
    that failed together do not come back together.  No pause goes beyond the budget.

    Parameters
    ----------
    tries
        What had been tried before.
    at
        When the try failed, by the clock of ``tries.started``.
    patience
        How long it may go on.
    retriable
        Whether the next try may not meet the failure.
    chance
        A number from 0 to 1.

    Examples
    --------
    >>> after_failure(Tries(0.0), 0.1, Patience(10.0), retriable=True, chance=1.0)
    Again(pause=0.3, tries=Tries(started=0.0, failed=1))
    >>> after_failure(Tries(0.0, 7), 10.0, Patience(10.0), retriable=True, chance=1.0)
    GiveUp(tries=Tries(started=0.0, failed=8))
    """
    now = Tries(tries.started, tries.failed + 1)
    left = None if patience.budget is None else tries.started + patience.budget - at
    if not retriable or (left is not None and left <= 0):
        return GiveUp(now)
    pause = Backoff(patience.first, patience.longest).after(now.failed, chance)
    return Again(pause if left is None else min(pause, left), now)


def is_retriable(error: BaseException) -> bool:
    """Return whether an error says of itself that the next try may not meet it."""
    return bool(getattr(error, "retriable", False))


class Retrying:
    """Calls a function until it succeeds, fails for good, or patience is over.

    Parameters
    ----------
    patience
        How long it goes on.
    counters
        Counts failures and tries.
    wait
        Waits so many seconds, and returns whether the task was asked to stop meanwhile.
    clock, chance
        Where the time and the jitter come from.

    Attributes
    ----------
    heard
        Called with each failure before the pause that follows it, and ``None`` after the last one.
    """

    def __init__(
        self,
        patience: Patience,
        counters: Counters,
        *,
        wait: Callable[[float], bool],
        clock: Callable[[], float] | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self.patience = patience
        self.counters = counters
        self.heard: Callable[[Exception | None], None] = _nobody
        self._wait = wait
        self._clock = clock or time.monotonic
        self._chance = chance or jitter

    def call(self, function: Callable[[], T]) -> T:
        """Call the function, and return what it returns or raise what it raised last.

        When the task is asked to stop between two tries, the last failure is raised.
        """
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - raised again when patience is over
            return self.again(function, error)

    def again(self, function: Callable[[], T], error: Exception) -> T:
        """Go on after a first call that failed with this error."""
        try:
            return self._until_it_ends(function, error)
        finally:
            self.heard(None)

    def _until_it_ends(self, function: Callable[[], T], error: Exception) -> T:
        tries = Tries(self._clock())
        while True:
            self.counters.failures += 1
            decision = after_failure(
                tries,
                self._clock(),
                self.patience,
                retriable=is_retriable(error),
                chance=self._chance(),
            )
            if isinstance(decision, GiveUp):
                raise error
            self.heard(error)
            if self._wait(decision.pause):
                raise error
            self.counters.retries += 1
            tries = decision.tries
            try:
                return function()
            except Exception as failure:  # noqa: BLE001 - decided upon above
                error = failure


def _nobody(error: Exception | None) -> None:
    del error


# What a connector's config says about failures.

_ONCE = Patience(0.0)
#: What a task waits for is looked at this often, s, where nobody has said otherwise.
_LONGEST = 5.0
_FOR_EVER = Patience(None, _LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """What is done with records that fail.

    Examples
    --------
    >>> policy = ErrorPolicy.of({"errors.tolerance": "all", "errors.retry.timeout": "-1"}, "sink")
    >>> policy.tolerates, policy.patience.budget
    (True, None)
    """

    #: How long converters and transforms are tried again.
    patience: Patience = _ONCE
    #: How long what a task or connector is asked for is tried again after a RetriableError.
    task_patience: Patience = _FOR_EVER
    #: Whether records that converters and transforms refuse are left out.
    tolerates: bool = False
    #: Whether records that the sink itself refuses are found and left out.
    tolerates_put: bool = False
    #: Whether failures are logged.
    logs: bool = False
    #: Whether that log has the records themselves.
    logs_records: bool = False
    #: Where records that were left out go; empty: nowhere.
    dead_letter_topic: str = ""
    #: Whether dead letters say what happened.
    context_headers: bool = True

    @classmethod
    def of(cls, texts: Mapping[str, str], role: Literal["source", "sink"]) -> ErrorPolicy:
        """Read a connector's config; its task configs need none of these keys.

        Raises
        ------
        ConnectorConfigError
            One of the keys ``errors.*`` has a wrong value.
        """
        values, problems = common_keys(role).read(texts)
        wrong = [(one.key, one.message) for one in problems if one.key.startswith("errors.")]
        if wrong:
            raise ConnectorConfigError.of(wrong)
        longest = max(_seconds(values["errors.retry.delay.max.ms"]), 0.0)
        timeout = _seconds(values["errors.retry.timeout"])
        patience = Patience(None if timeout < 0 else timeout, longest)
        # A task that asks for another try gets it, unless somebody set a limit.
        task_budget = patience.budget if "errors.retry.timeout" in texts else None
        task_longest = longest if "errors.retry.delay.max.ms" in texts else _LONGEST
        return cls(
            patience=patience,
            task_patience=Patience(task_budget, task_longest),
            tolerates=values["errors.tolerance"].lower() == "all",
            tolerates_put=values.get("errors.put.tolerance", "none").lower() == "all",
            logs=values["errors.log.enable"],
            logs_records=values["errors.log.include.messages"],
            dead_letter_topic=values.get("errors.deadletterqueue.topic.name", "").strip(),
            context_headers=values.get("errors.deadletterqueue.context.headers.enable", True),
        )


def _seconds(value: timedelta) -> float:
    return value.total_seconds()
