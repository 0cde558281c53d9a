"""Stages: where on its way a record was when something failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

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
        """Give the counters by the names that Kafka Connect has for them."""
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
        """Give the counts of this moment."""
        return HandlingStatistics(**vars(self))


class HandlingStage(StrEnum):
    """What was being done with a record, by the words of Kafka Connect's headers."""

    TASK_POLL = "TASK_POLL"
    TRANSFORMATION = "TRANSFORMATION"
    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"
    TASK_PUT = "TASK_PUT"
