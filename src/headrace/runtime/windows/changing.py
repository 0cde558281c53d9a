"""Updates that take back what was given before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.runtime.aggregates.algebras import ABSENT

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk

__all__ = ["with_olds"]


def with_olds(chunk: Chunk, olds: list[Any]) -> Chunk:
    """Put before each new result the old one, marked as taken back; ABSENT where there is none.

    Examples
    --------
    >>> from headrace.runtime.chunk import Chunk
    >>> news = Chunk(["a", "b"], [2, 5], np.array([7, 8]), np.array([1, 2]))
    >>> both = with_olds(news, [1, ABSENT])
    >>> both.values, both.retracts.tolist()
    ([1, 2, 5], [True, False, False])
    """
    had = np.fromiter((old is not ABSENT for old in olds), np.bool_, len(olds))
    counts = had.astype(np.intp) + 1
    values = [
        value
        for old, new in zip(olds, chunk.values, strict=True)
        for value in ((new,) if old is ABSENT else (old, new))
    ]
    retracts = np.zeros(len(values), np.bool_)
    retracts[(np.cumsum(counts) - counts)[had]] = True
    return replace(chunk.repeat(counts, values), retracts=retracts)
