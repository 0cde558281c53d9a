"""A run of records in columns: what processors take and give."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Chunk", "Int64s"]

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class Chunk:
    """Records of one operator, in the order of their marks.

    A mark is the position of the message in the broker's commit log, or of the message that
    caused the record: the order in which everything is handled.
    """

    #: None: no record has a key.
    keys: list[Any] | None
    values: list[Any]
    #: Event times, ms since 1970.
    times: Int64s
    marks: Int64s
    #: The messages' user properties, None where nobody downstream asks for them.
    headers: list[dict[str, str] | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def empty(cls) -> Chunk:
        """Make a chunk without records."""
        none = np.empty(0, np.int64)
        return cls(None, [], none, none)

    def with_values(self, values: list[Any]) -> Chunk:
        """Replace the values, one for one."""
        return Chunk(self.keys, values, self.times, self.marks, self.headers)

    def with_keys(self, keys: list[Any]) -> Chunk:
        """Replace the keys, one for one."""
        return Chunk(keys, self.values, self.times, self.marks, self.headers)

    def key_list(self) -> list[Any]:
        """Give the keys, also where none is set."""
        return [None] * len(self.values) if self.keys is None else self.keys

    def take(self, indices: npt.NDArray[np.intp]) -> Chunk:
        """Pick records by index, in the order of the indices."""
        picks = indices.tolist()
        return Chunk(
            None if self.keys is None else [self.keys[i] for i in picks],
            [self.values[i] for i in picks],
            self.times[indices],
            self.marks[indices],
            None if self.headers is None else [self.headers[i] for i in picks],
        )

    def repeat(self, counts: npt.NDArray[np.intp], values: list[Any]) -> Chunk:
        """Replace record *i* by ``counts[i]`` records that share its key, time and mark."""
        return Chunk(
            None if self.keys is None else _repeated(self.keys, counts),
            values,
            np.repeat(self.times, counts),
            np.repeat(self.marks, counts),
            None if self.headers is None else _repeated(self.headers, counts),
        )

    @classmethod
    def merge(cls, chunks: Sequence[Chunk]) -> Chunk:
        """Join chunks into one in the order of the marks; equal marks keep their order."""
        full = [chunk for chunk in chunks if len(chunk)]
        if len(full) <= 1:
            return full[0] if full else cls.empty()
        joined = cls(
            None
            if all(chunk.keys is None for chunk in full)
            else list(chain.from_iterable(chunk.key_list() for chunk in full)),
            list(chain.from_iterable(chunk.values for chunk in full)),
            np.concatenate([chunk.times for chunk in full]),
            np.concatenate([chunk.marks for chunk in full]),
            None
            if all(chunk.headers is None for chunk in full)
            else list(chain.from_iterable(chunk.headers or [None] * len(chunk) for chunk in full)),
        )
        if np.all(joined.marks[:-1] <= joined.marks[1:]):
            return joined
        return joined.take(np.argsort(joined.marks, kind="stable"))


def _repeated(items: list[Any], counts: npt.NDArray[np.intp]) -> list[Any]:
    return list(
        chain.from_iterable([item] * n for item, n in zip(items, counts.tolist(), strict=True))
    )
