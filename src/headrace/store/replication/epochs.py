"""Epochs: who wrote which part of a log, so that two copies of it find where they part."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

__all__ = ["Epoch", "EpochTable", "common_point", "next_term"]

#: A restart adds one to the epoch, a promotion goes to the next multiple of this: so an old
#: primary that starts again and again never overtakes the broker that replaced it.
_TERM = 1_000_000
#: Number, first position, mark.
_ROW = struct.Struct("<qqQ")


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """One primary's stretch of the log."""

    number: int
    #: Position of the first entry that its primary wrote.
    start: int
    #: Random: two brokers that were promoted to the same number are told apart by it.
    mark: int


@dataclass(frozen=True, slots=True)
class EpochTable:
    """The epochs of a log, oldest first; what lies before the first one is epoch 0.

    Examples
    --------
    >>> table = EpochTable().opened(Epoch(1, 500, 7))
    >>> table.latest, EpochTable.unpack(table.pack()) == table
    (1, True)
    """

    epochs: tuple[Epoch, ...] = ()

    @property
    def latest(self) -> int:
        """Number of the newest epoch."""
        return self.epochs[-1].number if self.epochs else 0

    @property
    def newest(self) -> Epoch:
        """The newest epoch."""
        return self.epochs[-1] if self.epochs else Epoch(0, 0, 0)

    @property
    def promoted_at(self) -> int:
        """Where the last promotion begins; 0: there was none."""
        starts = [each.start for each in self.epochs if each.number % _TERM == 0]
        return starts[-1] if starts else 0

    def opened(self, epoch: Epoch) -> EpochTable:
        """Add an epoch at the end."""
        return EpochTable((*self.epochs, epoch))

    def end_of(self, epoch: Epoch, log_end: int) -> int | None:
        """One past the last position that was written in an epoch; None when it is unknown."""
        if epoch.number == 0:
            return self.epochs[0].start if self.epochs else log_end
        if epoch not in self.epochs:
            return None
        after = self.epochs.index(epoch) + 1
        return self.epochs[after].start if after < len(self.epochs) else log_end

    def rows(self) -> list[tuple[int, int, int]]:
        """Give number, start and mark of each."""
        return [(each.number, each.start, each.mark) for each in self.epochs]

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, int, int]]) -> EpochTable:
        """Make the table from what :meth:`rows` gave."""
        return cls(tuple(Epoch(*row) for row in rows))

    def pack(self) -> bytes:
        """Write the table, as the payload of an EPOCH entry carries it."""
        return b"".join(_ROW.pack(each.number, each.start, each.mark) for each in self.epochs)

    @classmethod
    def unpack(cls, payload: bytes | bytearray | memoryview) -> EpochTable:
        """Read what :meth:`pack` wrote.

        Raises
        ------
        ValueError
            When the bytes are no table.
        """
        try:
            return cls(tuple(Epoch(*row) for row in _ROW.iter_unpack(payload)))
        except struct.error as error:
            raise ValueError(f"{len(payload)} bytes are no table of epochs") from error


def next_term(epoch: int) -> int:
    """Give the epoch that a promotion begins.

    >>> next_term(3), next_term(1_000_002)
    (1000000, 2000000)
    """
    return (epoch // _TERM + 1) * _TERM


def common_point(mine: EpochTable, my_end: int, theirs: EpochTable, their_end: int) -> int:
    """Find the position up to which two copies of one log are the same.

    Examples
    --------
    >>> old = EpochTable()
    >>> common_point(old, 900, old.opened(Epoch(1, 500, 7)), 2000)
    500
    """
    pairs = zip(mine.epochs, theirs.epochs, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    last = mine.epochs[shared - 1] if shared else Epoch(0, 0, 0)
    mine_end, theirs_end = mine.end_of(last, my_end), theirs.end_of(last, their_end)
    assert mine_end is not None
    assert theirs_end is not None
    return min(mine_end, theirs_end)
