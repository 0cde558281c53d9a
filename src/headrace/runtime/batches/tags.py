"""Tags: which batch a message belongs to, as a property of the message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BATCH", "Tags", "make_tag", "winner"]

BATCH = "HEADRACE_BATCH"
"""Property of a message: epoch and batch that wrote it, and whether it has a value."""

_HAS_VALUE, _NO_VALUE = "v", "n"


def make_tag(epoch: int, batch: int, *, has_value: bool) -> bytes:
    r"""Give the raw property of a message.

    Examples
    --------
    >>> make_tag(2, 17, has_value=True)
    b'HEADRACE_BATCH\x012.17.v\x02'
    """
    return f"{BATCH}\1{epoch}.{batch}.{_HAS_VALUE if has_value else _NO_VALUE}\2".encode()


class Tags:
    """The tags of many messages.

    Parameters
    ----------
    column
        The property of each message, null where it has none; such a message is of no batch.

    Examples
    --------
    >>> tags = Tags(pa.array([b"1.7.v", b"2.7.n", None], pa.binary()))
    >>> tags.batches.tolist(), tags.of(7, 2).tolist(), tags.has_value.tolist()
    ([7, 7, 0], [False, True, False], [True, False, False])
    """

    def __init__(self, column: pa.BinaryArray) -> None:
        # Messages that lie together have the same tag: few texts are looked at.
        found = column.dictionary_encode()
        known = [_parsed(text) for text in found.dictionary.to_pylist()]
        table = np.array([*known, (0, 0, 0)], np.int64).reshape(-1, 3)
        picks = pc.fill_null(found.indices, len(known)).to_numpy(zero_copy_only=False)
        self.epochs = table[picks, 0]
        self.batches = table[picks, 1]
        self.has_value = table[picks, 2].astype(np.bool_)

    def of(self, batch: int, epoch: int | None) -> npt.NDArray[np.bool_]:
        """Tell which messages are of a batch, as the given epoch wrote it; None for any."""
        same: npt.NDArray[np.bool_] = self.batches == batch
        return same if epoch is None else same & (self.epochs == epoch)


def _parsed(text: bytes) -> tuple[int, int, int]:
    parts = text.split(b".")
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return 0, 0, 0
    return int(parts[0]), int(parts[1]), int(parts[2] == _HAS_VALUE.encode())


def winner(lineage: Sequence[Sequence[int]], batch: int) -> int | None:
    """Say which epoch committed a batch; None where that is no longer remembered.

    Examples
    --------
    >>> lineage = [[1, 1], [3, 5]]
    >>> winner(lineage, 4), winner(lineage, 5), winner([[9, 100]], 4)
    (1, 3, None)
    """
    owners = [epoch for epoch, first in lineage if first <= batch]
    return owners[-1] if owners else None
