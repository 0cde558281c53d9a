"""Cuts: several queues, each up to its last message before one position of the commit log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from headrace.store.compacted_reading import OldPart
    from headrace.store.index import IndexView, QueueKey

__all__ = ["Cut", "Int64s", "QueuePositions", "cut_queues"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cut:
    """Several queues, cut at one position of the log."""

    #: Every message before this position is before the queue's end, every later one behind it.
    position: int
    begins: dict[QueueKey, int]
    ends: dict[QueueKey, int]
    #: One past the last message of each queue.
    latest: dict[QueueKey, int]


class QueuePositions:
    """Where the messages of one queue lie in the commit log, from an offset on.

    Only a window is loaded, and it grows while it may hide an earlier message.
    """

    def __init__(self, view: IndexView, old: OldPart | None, begin: int) -> None:
        self._view = view
        self._old = old
        least = view.min_offset if old is None else old.min_offset
        #: First offset to look at, and one past the last.
        self.begin = max(begin, least)
        self.end = max(view.max_offset, self.begin)
        #: One past the last message, wherever one begins.
        self.latest = view.max_offset
        self._offsets: Int64s = np.empty(0, np.int64)
        self.positions: Int64s = np.empty(0, np.int64)
        #: Bytes of the messages, as they lie in the log.
        self.sizes: Int64s = np.empty(0, np.int64)
        self._loaded = self.begin

    def load(self, window: int) -> None:
        """Look at the offsets of a window."""
        last = min(self.begin + window, self.end)
        if last <= self._loaded:
            return
        if self._old is not None:
            self._offsets, self.positions, self.sizes = self._old.positions(self.begin, last)
        else:
            units = self._view.units(self.begin, last)
            self._offsets = np.arange(self.begin, last)
            self.positions = np.ascontiguousarray(units["position"])
            self.sizes = units["size"].astype(np.int64)
        self._loaded = last

    def may_hide(self, position: int | None) -> bool:
        """Whether messages before a position (None: any) may lie behind the window."""
        if self._loaded >= self.end:
            return False
        return position is None or not len(self.positions) or self.positions[-1] < position

    def end_before(self, position: int) -> int:
        """Give the first offset at or behind a position. Caller: has loaded up to there."""
        row = int(np.searchsorted(self.positions, position))
        return int(self._offsets[row]) if row < len(self._offsets) else self.end


def cut_queues(
    queues: Mapping[QueueKey, QueuePositions],
    begins: Mapping[QueueKey, int],
    end: int,
    limit: int,
    max_bytes: int = 0,
) -> Cut:
    """Cut queues at one position.

    At most ``limit`` messages, of at most ``max_bytes`` in all, are before it (0: any number), but
    at least one.
    """
    latest = {key: queue.latest for key, queue in queues.items()}
    position = None
    if limit and sum(queue.end - queue.begin for queue in queues.values()) > limit:
        position = _position_after(queues, limit)
    if max_bytes:
        position = _position_within(queues, position, end, max_bytes)
    if position is None:
        ends = {key: queue.end for key, queue in queues.items()}
        return Cut(end, dict(begins), ends, latest)
    ends = {key: queue.end_before(position) for key, queue in queues.items()}
    return Cut(position, dict(begins), ends, latest)


def _position_after(queues: Mapping[QueueKey, QueuePositions], limit: int) -> int | None:
    """Find the position of the first message beyond a limit, counted over all queues."""
    window = 2 * limit // len(queues) + 1024
    windows = dict.fromkeys(queues, window)
    while True:
        for key, queue in queues.items():
            queue.load(windows[key])
        loaded = np.concatenate([queue.positions for queue in queues.values()])
        # Fewer loaded than the limit: then some window is too small, and all of them grow.
        cut = int(np.partition(loaded, limit)[limit]) if len(loaded) > limit else None
        short = [key for key, queue in queues.items() if queue.may_hide(cut)]
        if not short:
            return cut
        for key in short:
            windows[key] *= 4


def _position_within(
    queues: Mapping[QueueKey, QueuePositions], position: int | None, end: int, max_bytes: int
) -> int | None:
    """Find the position of the first message beyond so many bytes, if it is before another."""
    bound = end if position is None else position
    for queue in queues.values():
        queue.load(1)
    firsts = [int(queue.positions[0]) for queue in queues.values() if len(queue.positions)]
    if not firsts or bound - min(firsts) <= max_bytes:
        # As much of the log as that holds no more messages than that.
        return position
    if position is None:
        for queue in queues.values():
            queue.load(queue.end - queue.begin)
    positions = np.concatenate([queue.positions for queue in queues.values()])
    sizes = np.concatenate([queue.sizes for queue in queues.values()])
    order = np.argsort(positions)
    order = order[positions[order] < bound]
    beyond = max(1, int(np.searchsorted(np.cumsum(sizes[order]), max_bytes, side="right")))
    return int(positions[order[beyond]]) if beyond < len(order) else position
