"""Groupings: which task takes a tuple, for many tuples at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.keys import encode_key, encode_keys, key_hash, key_hashes
from headrace.runtime.chunk import ANY_TASK, Int64s

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk
    from headrace.topology.operators.bolts import Grouping

__all__ = ["Sending", "hashes_of", "key_getter", "tasks_of"]

#: Types of which equal values have equal encodings, as long as all are of one type.
_ALIKE = frozenset({str, int, bytes, bool, type(None)})

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Sending:
    """What tuples are sent by."""

    grouping: Grouping
    #: How many tasks may take them.
    tasks: int
    #: Where a sender begins to share tuples out.
    first: int = 0


def tasks_of(chunk: Chunk, sending: Sending) -> tuple[Chunk, Int64s]:
    """Choose the task of each tuple; a tuple may be left out, or come several times.

    :data:`~headrace.runtime.chunk.ANY_TASK` stands for all tasks.

    Raises
    ------
    ValueError
        A tuple names no task, or one that there is not.
    """
    match sending.grouping.kind:
        case "shuffle" | "local_or_shuffle":
            return chunk, (np.arange(len(chunk)) + sending.first) % sending.tasks
        case "fields":
            hashes = hashes_of(chunk.values, sending.grouping.fields)
            return chunk, hashes % sending.tasks
        case "all":
            return chunk, np.full(len(chunk), ANY_TASK, np.int64)
        case "global":
            return chunk, np.zeros(len(chunk), np.int64)
        case "direct":
            return chunk, _named(chunk, sending)
        case "custom":
            return _chosen(chunk, sending)


def key_getter(fields: tuple[int, ...]) -> Callable[[Row], Any]:
    """Give what takes the key out of the values: of one field its value, of several a tuple.

    >>> key_getter((1,))(("a", "b")), key_getter((1, 0))(("a", "b"))
    ('b', ('b', 'a'))
    """
    return itemgetter(*fields)


def hashes_of(rows: Sequence[Row], fields: tuple[int, ...]) -> Int64s:
    """Hash the canonical bytes of some fields of each tuple, once per distinct value.

    Examples
    --------
    >>> hashes_of([("to",), ("be",), ("to",)], (0,)).tolist()
    [1068027680, 3286602729, 1068027680]
    """
    keys = list(map(key_getter(fields), rows))
    if not _are_alike(keys, several=len(fields) > 1):
        return key_hashes(encode_keys(keys)).astype(np.int64)
    table = _Hashes()
    return np.fromiter(map(table.__getitem__, keys), np.int64, len(keys))


class _Hashes(dict[Any, int]):
    """Hashes of keys, by key."""

    def __missing__(self, key: Any) -> int:
        found = self[key] = key_hash(encode_key(key))
        return found


def _are_alike(keys: list[Any], *, several: bool) -> bool:
    """Tell whether keys that Python calls equal are the same key: 1, 1.0 and True are not."""
    columns = zip(*keys, strict=True) if several else (keys,)
    kinds = [set(map(type, column)) for column in columns]
    return all(len(found) == 1 and found <= _ALIKE for found in kinds)


def _named(chunk: Chunk, sending: Sending) -> Int64s:
    targets = chunk.targets
    if targets is None:
        targets = np.full(len(chunk), ANY_TASK, np.int64)
    wrong = np.flatnonzero((targets < 0) | (targets >= sending.tasks))
    if len(wrong):
        at = int(wrong[0])
        if targets[at] == ANY_TASK:
            message = f"the tuple {chunk.values[at]!r:.200} names no task: use emit_direct"
        else:
            message = f"task {targets[at]} was named; there are 0 to {sending.tasks - 1}"
        raise ValueError(message)
    return targets


def _chosen(chunk: Chunk, sending: Sending) -> tuple[Chunk, Int64s]:
    custom, tasks = sending.grouping.custom, sending.tasks
    assert custom is not None, "the front door takes no custom grouping without one"
    found: list[int] = []
    counts = np.zeros(len(chunk), np.intp)
    for at, row in enumerate(chunk.values):
        chosen = custom.choose(row, tasks)
        for task in chosen:
            if type(task) is not int or not 0 <= task < tasks:
                message = (
                    f"it chose task {task!r:.100} for {row!r:.200}; there are 0 to {tasks - 1}"
                )
                raise ValueError(message)
        found += chosen
        counts[at] = len(chosen)
    copies = [row for row, n in zip(chunk.values, counts.tolist(), strict=True) for _ in range(n)]
    return chunk.repeat(counts, copies), np.array(found, np.int64)
