"""Places of tasks and key ranges: pure arithmetic, the same in every process.

Task *t* of a component is in partition ``t % partitions``.  Range *r* of a key-value bolt is in
partition ``r % partitions``, whatever its parallelism is, and belongs to one of the tasks there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.runtime.chunk import Int64s

__all__ = ["key_value_tasks", "task_of_ranges", "tasks_in"]


def tasks_in(partition: int, partitions: int, parallelism: int) -> range:
    """Give the tasks of a component that are in a partition.

    >>> list(tasks_in(1, 4, 6)), list(tasks_in(3, 4, 6))
    ([1, 5], [3])
    """
    return range(partition, parallelism, partitions)


def key_value_tasks(parallelism: int, partitions: int) -> int:
    """Give how many tasks a key-value bolt has: every partition has ranges, and so a task."""
    return max(parallelism, partitions)


def task_of_ranges(ranges: Int64s, partitions: int, tasks: int) -> Int64s:
    """Give the task that each key range belongs to.

    Examples
    --------
    >>> import numpy as np
    >>> task_of_ranges(np.array([0, 1, 4, 5, 8]), 4, 6).tolist()
    [0, 1, 4, 5, 0]
    """
    places = ranges % partitions
    own = (tasks - 1 - places) // partitions + 1
    found: Int64s = places + partitions * ((ranges // partitions) % own)
    return found
