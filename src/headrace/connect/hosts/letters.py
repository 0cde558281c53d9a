"""Dead letters of a sink task, kept until the batch after theirs is flushed."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["Letters"]


class Letters:
    """What is to go to the dead-letter topic, by batch.

    Who asked for a batch's letters may have died before they were sent, so they are given again.

    Examples
    --------
    >>> letters = Letters()
    >>> letters.add(1, pa.RecordBatch.from_pylist([{"topic": "dead"}]))
    >>> letters.count(1), letters.of(1).num_rows, letters.of(2)
    (1, 1, None)
    >>> letters.flushed(2, None)
    >>> letters.count(1)
    0
    """

    def __init__(self) -> None:
        self._by_batch: dict[int, list[pa.RecordBatch]] = {}

    def add(self, batch: int, letters: pa.RecordBatch | None) -> None:
        """Keep what a batch has left behind."""
        if letters is not None:
            self._by_batch.setdefault(batch, []).append(letters)

    def of(self, batch: int) -> pa.RecordBatch | None:
        """Give all letters of a batch so far."""
        kept = self._by_batch.get(batch)
        return pa.concat_batches(kept) if kept else None

    def count(self, batch: int) -> int:
        """Tell how many there are."""
        return sum(one.num_rows for one in self._by_batch.get(batch, ()))

    def flushed(self, batch: int, letters: pa.RecordBatch | None) -> None:
        """A batch is flushed: those before it are committed, and their letters sent."""
        self.add(batch, letters)
        for one in [one for one in self._by_batch if one < batch]:
            del self._by_batch[one]

    def clear(self) -> None:
        """Begin anew: what was not committed is put again."""
        self._by_batch.clear()
