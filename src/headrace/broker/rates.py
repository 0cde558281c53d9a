"""Rates of counters over the last seconds and minutes."""

from __future__ import annotations

from collections import deque

_SPANS = (10.0, 60.0, 600.0)


class Rate:
    """How fast a counter rises.

    Examples
    --------
    >>> rate = Rate()
    >>> for second in range(21):
    ...     rate.note(now=float(second), total=100 * second)
    >>> rate.per_second()
    (100.0, 100.0, 100.0)
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, *, now: float, total: int) -> None:
        """Take a sample of the counter, at a time in seconds."""
        self._samples.append((now, total))
        # One sample beyond the longest span is where that span begins.
        while len(self._samples) > 1 and self._samples[1][0] <= now - _SPANS[-1]:
            self._samples.popleft()

    def per_second(self) -> tuple[float, float, float]:
        """Return the rate over the last 10 s, minute and 10 minutes, as far as there are samples."""
        if len(self._samples) < 2:
            return (0.0, 0.0, 0.0)
        short, middle, long = (self._over(span) for span in _SPANS)
        return (short, middle, long)

    def _over(self, span: float) -> float:
        end, last = self._samples[-1]
        older = (sample for sample in reversed(self._samples) if sample[0] <= end - span)
        begin, first = next(older, self._samples[0])
        return (last - first) / (end - begin)
