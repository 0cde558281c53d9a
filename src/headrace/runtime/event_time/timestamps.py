"""Event times that the user selects, as milliseconds since 1970, and the clocks behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.runtime.event_time.silence import milliseconds
from headrace.runtime.low_level import cells
from headrace.runtime.processors import Processor, ProcessorContext
from headrace.runtime.user_code import UserFunction
from headrace.topology.operators.core import SelectTimestamp

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk, Int64s
    from headrace.runtime.event_time.watermarks import SourceWatermarks
    from headrace.topology.operators.core import Source


_RANGE = 1 << 55


def checked_time(time: object, otherwise: int) -> int:
    """Turn what a selector gave into ms since 1970; None leaves the record's time.

    Raises
    ------
    TypeError
        It is neither an aware datetime nor a whole number.
    ValueError
        It is further from 1970 than any clock.

    Examples
    --------
    >>> from datetime import UTC
    >>> checked_time(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC), 0), checked_time(5, 0)
    (2000, 5)
    >>> checked_time(None, 7)
    7
    """
    if time is None:
        return otherwise
    if isinstance(time, datetime):
        if time.tzinfo is None:
            message = f"{time!r} has no time zone: give it one, e.g. .replace(tzinfo=UTC)"
            raise TypeError(message)
        return cells.milliseconds(time)
    if not isinstance(time, int) or isinstance(time, bool):
        message = f"a time is a datetime, or an int of ms since 1970, not {time!r:.100}"
        raise TypeError(message)
    if abs(time) >= _RANGE:
        message = f"{time} is no time in ms since 1970"
        raise ValueError(message)
    return time


def checked_times(times: Sequence[Any], otherwise: Int64s) -> Int64s:
    """Turn what a selector gave for each record into ms since 1970.

    Raises
    ------
    TypeError, ValueError
        One of them is no time; which, :func:`checked_time` tells.
    """
    if all(type(time) is int for time in times) and all(-_RANGE < time < _RANGE for time in times):
        return np.array(times, np.int64)
    pairs = zip(times, otherwise.tolist(), strict=True)
    return np.array([checked_time(time, other) for time, other in pairs], np.int64)


def observe(
    context: ProcessorContext,
    clock: SourceWatermarks,
    names: Sequence[str],
    chunk: Chunk,
    newest: Int64s | None,
) -> None:
    """Move a clock by records whose queues have these names, and tell how late each may be.

    Records with a time beyond their ``newest`` are counted and move nothing.
    """
    assert chunk.queues is not None, "the records of a clock are numbered by queue"
    if newest is not None:
        context.counters["future"] += int(np.count_nonzero(chunk.times > newest))
    found, chunk.late_below = clock.observe(names, chunk.queues, chunk.times, chunk.marks, newest)
    context.tell_time(found, clock.current)


def newest_times(
    operator: Source | SelectTimestamp, context: ProcessorContext, stored: Int64s
) -> Int64s | None:
    """Return the highest time at which each record moves watermarks; None where all do."""
    own = operator.max_future
    ahead = context.max_future if own is None else milliseconds(own)
    return None if ahead is None else stored + ahead


class SelectTimestampProcessor(Processor[SelectTimestamp]):
    """Gives records other times; its clock is per source queue, behind a shuffle per partition."""

    def __init__(self, operator: SelectTimestamp, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self.function = UserFunction(operator, operator.function, context.locator)
        self._clock = context.event_clock(operator, operator.allowed_lateness)

    def process(self, chunk: Chunk) -> Chunk:
        """Set times, and tell how late records are by them."""
        chunk, selected = self.function.each(chunk, chunk.values)
        chunk, times = self._checked(chunk, selected)
        chunk = replace(chunk, times=times, late_below=None)
        if self._clock is not None:
            self._observe(self._clock, chunk)
        return chunk

    def _observe(self, clock: SourceWatermarks, chunk: Chunk) -> None:
        queues, names = chunk.queues, self.context.source_queues
        if queues is None:
            chunk.queues = np.zeros(len(chunk), np.intp)
            names = [str(self.context.partition)]
        now = np.full(len(chunk), self.context.wall_clock, np.int64)
        newest = newest_times(self.operator, self.context, now)
        observe(self.context, clock, names, chunk, newest)
        chunk.queues = queues

    def _checked(self, chunk: Chunk, selected: list[Any]) -> tuple[Chunk, Int64s]:
        try:
            return chunk, checked_times(selected, chunk.times)
        except (TypeError, ValueError):
            # Some are no times: each of them follows the operator's policy.
            before = chunk.times.tolist()
            chunk, times = self.function.each(chunk, selected, before, step=checked_time)
            return chunk, np.array(times, np.int64)
