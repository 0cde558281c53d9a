"""What a follower does to its own store: append, cut, start over."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.store.catalog import mark_unchecked
from headrace.store.checkpoint import read_checkpoint
from headrace.store.fileops import FileOps
from headrace.store.log import CommitLog

if TYPE_CHECKING:
    from headrace.store.replication.following import (
        Epoch,
        LogHead,
    )


# The primary's side, without I/O: what a follower may have, and who has what.


class PositionVerdict(Enum):
    """What a primary thinks of a follower's position."""

    #: The follower's log is a beginning of this one.
    FITS = "fits"
    #: The follower has bytes that this log never had.
    DIVERGED = "diverged"
    #: This log has deleted what the follower needs next.
    GONE = "gone"
    #: The follower knows a newer epoch: another broker was promoted.
    STALE = "stale"


def judge(mine: LogHead, log: str, newest: Epoch, position: int) -> PositionVerdict:
    """Compare a follower's log, by its newest epoch and its end, with this one.

    Examples
    --------
    >>> from headrace.store.replication.following import Epoch, EpochTable
    >>> from headrace.store.replication.following import LogHead
    >>> judge(LogHead("l1", EpochTable(), 0, 900), "l1", Epoch(0, 0, 0), 901)
    <PositionVerdict.DIVERGED: 'diverged'>
    """
    if newest.number > mine.epochs.latest:
        return PositionVerdict.STALE
    end = mine.epochs.end_of(newest, mine.end)
    if log != mine.log or end is None or position > end:
        return PositionVerdict.DIVERGED
    return PositionVerdict.GONE if position < mine.begin else PositionVerdict.FITS


class Settled(Enum):
    """How waiting for followers ended."""

    #: Enough of them have it on disk.
    ENOUGH = "enough"
    #: Too few of them are there.
    TOO_FEW = "too few"
    #: They did not have it in time.
    TOO_LATE = "too late"


@dataclass(slots=True)
class Replica:
    """What the primary knows of a follower."""

    follower: str
    #: Where clients reach it.
    address: str
    #: Its broker id in routes; the primary's is 0.
    number: int
    #: It asked for bytes from here on last, and has everything before ``durable`` on disk.
    position: int = 0
    durable: int = 0
    #: When it was last heard, seconds of the caller's clock.
    heard: float = 0.0


@dataclass(slots=True, order=True)
class _Waiter:
    position: int
    deadline: float
    done: Callable[[Settled], None] = field(compare=False)


class ReplicaBook:
    """All followers of a primary, and who waits for them.

    Parameters
    ----------
    needed
        So many followers must have something on disk before it counts; 0 asks for none.
    patience
        Seconds to wait for them.
    expiry
        Seconds after which a follower that says nothing is gone.

    Examples
    --------
    >>> book = ReplicaBook(needed=1, patience=3, expiry=10)
    >>> book.heard("f1", "127.0.0.1:1", 0, 0, now=0)
    >>> book.wait(100, print, now=0)
    >>> book.heard("f1", "127.0.0.1:1", 100, 100, now=1)
    Settled.ENOUGH
    """

    def __init__(self, needed: int, patience: float, expiry: float) -> None:
        self.needed = needed
        self._patience = patience
        self._expiry = expiry
        self._replicas: dict[str, Replica] = {}
        self._waiters: list[_Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def heard(
        self, follower: str, address: str, position: int, durable: int, *, now: float
    ) -> None:
        """Note what a follower says of itself, and tell those who waited for that."""
        replica = self._replicas.get(follower)
        if replica is None:
            taken = {each.number for each in self._replicas.values()}
            number = next(one for one in range(1, len(taken) + 2) if one not in taken)
            replica = self._replicas[follower] = Replica(follower, address, number)
        replica.address, replica.heard = address, now
        replica.position, replica.durable = position, durable
        if self._waiters:
            self._tell(self.confirmed())

    def lost(self, follower: str) -> None:
        """Note that a follower's connection ended."""
        replica = self._replicas.get(follower)
        if replica is not None:
            replica.heard = float("-inf")

    def forget(self, follower: str) -> None:
        """Drop a follower for good."""
        self._replicas.pop(follower, None)

    def replicas(self) -> list[Replica]:
        """Return all followers that were ever heard, in the order of their numbers."""
        return sorted(self._replicas.values(), key=lambda each: each.number)

    def present(self, *, now: float) -> list[Replica]:
        """Return the followers that are there."""
        return [each for each in self.replicas() if now - each.heard <= self._expiry]

    def confirmed(self) -> int:
        """One past the last position that as many followers as needed have on disk."""
        ends = sorted((each.durable for each in self._replicas.values()), reverse=True)
        return ends[self.needed - 1] if 0 < self.needed <= len(ends) else 0

    def wait(self, position: int, done: Callable[[Settled], None], *, now: float) -> None:
        """Call back once enough followers have everything before a position, or will not."""
        if not self.needed or self.confirmed() >= position:
            done(Settled.ENOUGH)
        elif len(self.present(now=now)) < self.needed:
            done(Settled.TOO_FEW)
        else:
            insort(self._waiters, _Waiter(position, now + self._patience, done))

    def expire(self, *, now: float) -> None:
        """Answer those who have waited for too long."""
        late = [each for each in self._waiters if each.deadline <= now]
        if late:
            self._waiters = [each for each in self._waiters if each.deadline > now]
            for each in late:
                each.done(Settled.TOO_LATE)

    def next_deadline(self) -> float | None:
        """Return when :meth:`expire` has something to do next."""
        return min((each.deadline for each in self._waiters), default=None)

    def lowest(self, *, now: float) -> int | None:
        """Return the lowest position that a follower which is there still needs."""
        return min((each.position for each in self.present(now=now)), default=None)

    def _tell(self, confirmed: int) -> None:
        count = 0
        while count < len(self._waiters) and self._waiters[count].position <= confirmed:
            count += 1
        done, self._waiters = self._waiters[:count], self._waiters[count:]
        for each in done:
            each.done(Settled.ENOUGH)


# Changes to a store that is not open: cut its log, or empty it.

_DISCARDED = ".discarded"


def cut_log(path: Path, position: int, ops: FileOps | None = None) -> None:
    """Remove everything from a position on from the log of a store. Caller: has closed it.

    The store makes its indexes again when it is opened, as far as they went beyond the position.
    """
    ops = ops or FileOps()
    checkpoint = path / "checkpoint"
    saved = read_checkpoint(checkpoint, ops)
    if checkpoint.exists() and (saved is None or saved.table.position > position):
        ops.unlink(checkpoint)
        ops.sync_directory(path)
    mark_unchecked(path, ops)
    log = CommitLog(path / "log", ops, segment_size=1)
    try:
        log.cut(position)
    finally:
        log.close()


def empty_store(path: Path, begin: int, ops: FileOps | None = None) -> None:
    """Make a store an empty one whose log begins at a position. Caller: has closed it."""
    ops = ops or FileOps()
    old = path.with_name(path.name + _DISCARDED)
    ops.remove_tree(old)
    if path.exists():
        # One step: a crash leaves the old store or none, never a part of it.
        ops.rename(path, old)
        ops.sync_directory(path.parent)
    ops.make_directory(path / "log")
    log = CommitLog(path / "log", ops, segment_size=1)
    try:
        log.begin_at(begin)
    finally:
        log.close()
    ops.remove_tree(old)
