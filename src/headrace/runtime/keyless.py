"""Records without a key, which no operator that goes by keys can place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from headrace.runtime.chunk import Chunk

__all__ = ["NULL_KEYS", "count_keyless", "skip_keyless"]

#: Counter of the records that were skipped.
NULL_KEYS = "null_keys"


def count_keyless(counters: MutableMapping[str, int], operator: str, number: int = 1) -> None:
    """Count records without a key, in all and for the operator that skipped them.

    >>> counters = {}
    >>> count_keyless(counters, "op")
    >>> counters
    {'null_keys': 1, 'null_keys:op': 1}
    """
    for name in (NULL_KEYS, f"{NULL_KEYS}:{operator}"):
        counters[name] = counters.get(name, 0) + number


def skip_keyless(chunk: Chunk, counters: MutableMapping[str, int], operator: str) -> Chunk:
    """Leave out records whose key is None, and count them.

    Examples
    --------
    >>> from headrace.runtime.chunk import Chunk
    >>> counters = {}
    >>> chunk = Chunk(["a", None], [1, 2], np.array([0, 0]), np.array([1, 2]))
    >>> skip_keyless(chunk, counters, "op").values, counters
    ([1], {'null_keys': 1, 'null_keys:op': 1})
    """
    keys = chunk.key_list()
    skipped = keys.count(None)
    if not skipped:
        return chunk
    count_keyless(counters, operator, skipped)
    return chunk.take(np.array([i for i, key in enumerate(keys) if key is not None], np.intp))
