"""Which windows a time belongs to: for many times at once."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from headrace.runtime.chunk import Int64s
    from headrace.topology.windows import TimeWindows

__all__ = ["Assigned", "assign", "first_ends", "panes"]

_DAY = 86_400_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock's time, of whatever zone
_MILLISECOND = timedelta(milliseconds=1)


class Assigned(NamedTuple):
    """Windows of times: a time of several windows comes once for each."""

    #: Which time.
    indices: npt.NDArray[np.intp]
    starts: Int64s
    ends: Int64s


def panes(windows: TimeWindows, times: Int64s) -> Int64s:
    """Give the start of the pane of each time: times of one pane belong to the same windows.

    Examples
    --------
    >>> from headrace.topology.windows import TimeWindows
    >>> panes(TimeWindows(5, 2), np.array([-1, 0, 4])).tolist()
    [-1, 0, 4]
    >>> panes(TimeWindows(10, 5), np.array([-1, 0, 14])).tolist()
    [-5, 0, 10]
    """
    if windows.zone is not None:
        bounds = _day_bounds(windows, times)
        return bounds[np.searchsorted(bounds, times, side="right") - 1]
    width = math.gcd(windows.size, windows.slide)
    return (times - windows.offset) // width * width + windows.offset


def first_ends(windows: TimeWindows, times: Int64s) -> Int64s:
    """Give the end of the first window of each time that ends.

    Examples
    --------
    >>> from headrace.topology.windows import TimeWindows
    >>> first_ends(TimeWindows(10, 5), np.array([-1, 0, 14])).tolist()
    [0, 5, 15]
    """
    if windows.zone is not None:
        assigned = assign(windows, times)
        ends = np.full(len(times), np.iinfo(np.int64).max)
        np.minimum.at(ends, assigned.indices, assigned.ends)
        return ends
    # The first of its windows is the oldest: the last that began a size ago or before has ended.
    before = (times - windows.size - windows.offset) // windows.slide
    return (before + 1) * windows.slide + windows.offset + windows.size


def assign(windows: TimeWindows, times: Int64s) -> Assigned:
    """Give all windows of each time, the newest first.

    Examples
    --------
    >>> from headrace.topology.windows import TimeWindows
    >>> found = assign(TimeWindows(5_000, 2_000), np.array([14_500, 16_000]))
    >>> found.indices.tolist(), found.starts.tolist()
    ([0, 0, 0, 1, 1, 1], [14000, 12000, 10000, 16000, 14000, 12000])
    """
    if windows.zone is not None:
        return _assign_days(windows, times)
    last = (times - windows.offset) // windows.slide * windows.slide + windows.offset
    indices = np.arange(len(times))
    if windows.size == windows.slide:
        return Assigned(indices, last, last + windows.size)
    most = -(-windows.size // windows.slide)
    starts = last[:, None] - np.arange(most) * windows.slide
    live = (starts + windows.size > times[:, None]).ravel()
    starts = starts.ravel()[live]
    return Assigned(np.repeat(indices, most)[live], starts, starts + windows.size)


def _assign_days(windows: TimeWindows, times: Int64s) -> Assigned:
    assert windows.zone is not None
    indices: list[npt.NDArray[np.intp]] = []
    starts: list[Int64s] = []
    ends: list[Int64s] = []
    groups, group_of = np.unique(panes(windows, times), return_inverse=True)
    for number, pane in enumerate(groups.tolist()):
        own = np.flatnonzero(group_of == number)
        for start, end in _windows_of_day(windows, pane):
            indices.append(own)
            starts.append(np.full(len(own), start))
            ends.append(np.full(len(own), end))
    if not indices:
        none = np.empty(0, np.int64)
        return Assigned(none, none, none)
    return Assigned(np.concatenate(indices), np.concatenate(starts), np.concatenate(ends))


@lru_cache(maxsize=4096)
def _windows_of_day(windows: TimeWindows, pane: int) -> tuple[tuple[int, int], ...]:
    """Give the windows that hold the calendar day, or several, that begins at ``pane``."""
    assert windows.zone is not None
    # The wall clock around noon of the day tells which day it is, whatever clocks do at its ends.
    wall = _wall(windows.zone, pane + _DAY // 2) - windows.offset
    last = wall // windows.slide * windows.slide
    found = []
    for start in range(last, last - windows.size, -windows.slide):
        if start + windows.size > wall:
            begin, end = start + windows.offset, start + windows.offset + windows.size
            found.append((_instant(windows.zone, begin), _instant(windows.zone, end)))
    return tuple(found)


def _day_bounds(windows: TimeWindows, times: Int64s) -> Int64s:
    """Give the starts of all days around some times."""
    assert windows.zone is not None
    days = np.unique(times // _DAY).tolist()
    offset = windows.offset % _DAY
    around = {
        _instant(windows.zone, (day + more) * _DAY + offset)
        for day in days
        for more in range(-2, 3)
    }
    return np.array(sorted(around), np.int64)


@lru_cache(maxsize=65536)
def _instant(zone: str, wall: int) -> int:
    """Tell when a zone's clocks showed a time first, ms; skipped times are when they were."""
    try:
        shown = (_EPOCH + wall * _MILLISECOND).replace(tzinfo=ZoneInfo(zone))
        return (shown - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND
    except (OverflowError, ValueError):
        return wall  # no calendar reaches there


def _wall(zone: str, time: int) -> int:
    """Tell what a zone's clocks show, ms."""
    try:
        shown = (datetime(1970, 1, 1, tzinfo=UTC) + time * _MILLISECOND).astimezone(ZoneInfo(zone))
        return (shown.replace(tzinfo=None) - _EPOCH) // _MILLISECOND
    except (OverflowError, ValueError):
        return time
