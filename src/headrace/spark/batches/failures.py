"""Statistics of sinks that take whole batches, and the error for a failed call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headrace.errors import UserCodeError
from headrace.user_lines import user_line

if TYPE_CHECKING:
    from headrace.topology import BatchSink


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSinkStatistics:
    """The progress of one ``for_each_batch`` or ``sink_dataframe`` at one moment."""

    #: The last batch up to which everything is handed over.
    batch: int
    #: Batches handed over since this start.
    batches: int
    #: How long the present call has been running; None between calls.
    running: timedelta | None
    #: The number of failed calls since the last successful one, and the error of the last.
    failures: int
    error: str | None
    #: Whether the sink has given up, because its records are gone.
    stopped: bool


#: The longest part of an error that is shown: Spark's errors hold Java's whole stack.
_SHOWN = 2000


def failed_call(
    sink: BatchSink, batch: int, error: Exception, function: Callable[..., object] | None
) -> UserCodeError:
    """Return the error for a failed call, with the operator and the user's own line.

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
