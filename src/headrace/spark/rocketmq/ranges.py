"""How much of each queue a batch reads, and how that becomes tasks: plain arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.client import MessageQueue

__all__ = ["ReadRange", "share_out", "split_ranges"]


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Messages of one queue with offsets from ``begin`` up to ``end``, ``end`` left out."""

    queue: MessageQueue
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin


def share_out(backlogs: Mapping[MessageQueue, int], limit: int) -> dict[MessageQueue, int]:
    """Divide a limit among queues in proportion to what waits in them.

    All queues come to their ends together, so their times advance together.
    A queue in which anything waits gets at least one message, if the limit is large enough.

    Examples
    --------
    >>> from headrace.client import MessageQueue
    >>> a, b = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)
    >>> list(share_out({a: 1_000, b: 3_000}, 100).values())
    [25, 75]
    >>> list(share_out({a: 1, b: 1_000_000}, 10).values())
    [1, 9]
    """
    sizes = np.array(list(backlogs.values()), np.int64)
    if not len(sizes) or int(sizes.sum()) <= limit:
        return dict(backlogs)
    shares = np.zeros(len(sizes), np.int64)
    largest_first = np.argsort(-sizes, kind="stable")
    shares[largest_first[:limit]] = 1
    shares = np.minimum(shares, sizes)
    rest, wanted = limit - int(shares.sum()), sizes - shares
    if rest:
        exact = wanted * (rest / int(wanted.sum()))
        more = np.floor(exact).astype(np.int64)
        fractions = np.argsort(-(exact - more), kind="stable")
        more[fractions[: rest - int(more.sum())]] += 1
        shares += more
    return dict(zip(backlogs, shares.tolist(), strict=True))


def split_ranges(ranges: Sequence[ReadRange], least: int | None) -> list[ReadRange]:
    """Cut large ranges so that there are about ``least`` tasks; by default one for each queue.

    Examples
    --------
    >>> from headrace.client import MessageQueue
    >>> queue = MessageQueue("t", "broker-a", 0)
    >>> [(part.begin, part.end) for part in split_ranges([ReadRange(queue, 10, 20)], 3)]
    [(10, 13), (13, 16), (16, 20)]
    """
    if least is None or len(ranges) >= least:
        return list(ranges)
    total = sum(map(len, ranges))
    parts: list[ReadRange] = []
    for whole in ranges:
        count = min(len(whole), max(1, round(least * len(whole) / total)))
        edges = [whole.begin + len(whole) * number // count for number in range(count + 1)]
        parts += [replace(whole, begin=begin, end=end) for begin, end in itertools.pairwise(edges)]
    return parts
