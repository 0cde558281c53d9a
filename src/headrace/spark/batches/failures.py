"""What users' code raises on a batch, told with the operator and the user's own line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.errors import UserCodeError
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from headrace.topology import BatchSink


# What a job says of the sinks that take whole batches.


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


#: What Spark raises holds the whole stack of its Java side.
_SHOWN = 2000


def failed_call(
    sink: BatchSink, batch: int, error: Exception, function: Callable[..., object] | None
) -> UserCodeError:
    """Make the error for a call that failed.

    Examples
    --------
    >>> from headrace import StreamBuilder, serdes
    >>> builder = StreamBuilder("job")
    >>> words = builder.source("words", serdes.string)
    >>> words.for_each_batch(lambda records, token: None, name="each")
    <end of 'each'>
    >>> (sink,) = builder.build().batch_sinks
    >>> str(failed_call(sink, 7, ValueError("no room"), None)).partition(" (made")[0]
    "for_each_batch 'each'"
    """
    place = user_line(error, function)
    return UserCodeError(
        f"{sink.label} '{sink.name}' (made at {sink.origin}) failed on batch {batch}:"
        f" {type(error).__name__}: {str(error)[:_SHOWN]}" + (f"\n  {place}" if place else "")
    )
