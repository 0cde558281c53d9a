"""What a job says of the sinks that take whole batches."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

__all__ = ["BatchSinkStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSinkStatistics:
    """One ``for_each_batch`` or ``sink_dataframe`` of a job at one moment."""

    #: Everything up to this batch is handed over.
    batch: int
    #: Batches handed over since this start.
    batches: int
    #: How long the call that runs now has run; None between calls.
    running: timedelta | None
    #: Failed calls since the last good one, and what the last of them met.
    failures: int
    error: str | None
    #: It has given up: what it should hand over is gone.
    stopped: bool
