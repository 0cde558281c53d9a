"""The follower's side, without I/O: what to do next, from what has happened."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

# Epochs: who wrote which part of a log, so that two copies of it find where they part.

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
        """Return one past the last position that was written in an epoch, or None when unknown."""
        if epoch.number == 0:
            return self.epochs[0].start if self.epochs else log_end
        if epoch not in self.epochs:
            return None
        after = self.epochs.index(epoch) + 1
        return self.epochs[after].start if after < len(self.epochs) else log_end

    def rows(self) -> list[tuple[int, int, int]]:
        """Return number, start and mark of each."""
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
            When the bytes are not a table.
        """
        try:
            return cls(tuple(Epoch(*row) for row in _ROW.iter_unpack(payload)))
        except struct.error as error:
            raise ValueError(f"{len(payload)} bytes are no table of epochs") from error


def next_term(epoch: int) -> int:
    """Return the epoch that a promotion begins.

    >>> next_term(3), next_term(1_000_002)
    (1000000, 2000000)
    """
    return (epoch // _TERM + 1) * _TERM


def common_point(mine: EpochTable, my_end: int, theirs: EpochTable, their_end: int) -> int:
    """Return the position up to which two copies of one log are the same.

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


#: Bytes asked for at first; an entry that is larger doubles it.
FIRST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogHead:
    """What a log says of itself."""

    #: Identity of the log: copies of one log share it.  Empty: it was never copied.
    log: str
    epochs: EpochTable
    #: Position of the oldest byte, and one past the last.
    begin: int
    end: int
    #: First position of the newest segment.
    newest: int = 0


# Events: what has happened.


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The primary told about its log."""

    head: LogHead


@dataclass(frozen=True, slots=True)
class Received:
    """The primary sent bytes of one segment, none when time was up."""

    #: First position of the segment.
    base: int
    position: int
    content: memoryview


@dataclass(frozen=True, slots=True)
class Refused:
    """The primary does not have this position, or not with this history."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Bytes were appended: all of them, or all whole entries among them."""

    epochs: EpochTable
    end: int
    #: On disk up to here.
    synced: int


@dataclass(frozen=True, slots=True)
class CutDone:
    """The own log was cut, or emptied."""

    head: LogHead


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection ended, an answer did not come, or bytes were not appended."""

    #: What there is of the copy now: some of the bytes, or less than before.
    kept: Copied


Event = Welcomed | Received | Refused | Copied | CutDone | Lost


# Instructions: what to do, one at a time.


@dataclass(frozen=True, slots=True)
class Greet:
    """Ask the primary about its log."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask for bytes; what is on disk here goes along as acknowledgement."""

    position: int
    durable: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class CopyBytes:
    """Append bytes to the own log."""

    base: int
    position: int
    content: memoryview


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Remove everything from a position on from the own log."""

    position: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Empty the own store, and begin at a position."""

    position: int
    why: str


@dataclass(frozen=True, slots=True)
class Halt:
    """Follow no more: somebody has to decide."""

    why: str
    hint: str


Instruction = Greet | Fetch | CopyBytes | TruncateLog | Restart | Halt


@dataclass(slots=True)
class Follower:
    """Decides what a follower does next.

    Parameters
    ----------
    head
        What the own log says of itself.
    from_newest
        An empty follower begins with the primary's newest segment, not its oldest.

    Examples
    --------
    >>> follower = Follower(LogHead("", EpochTable(), 0, 0))
    >>> follower.handle(Welcomed(LogHead("l1", EpochTable(), 0, 900)))
    Fetch(position=0, durable=0, max_bytes=4194304)
    """

    head: LogHead
    from_newest: bool = False
    #: What the primary last said of its log.
    primary: LogHead | None = None
    _max_bytes: int = field(default=FIRST_BYTES)
    _synced: int = -1

    def __post_init__(self) -> None:
        self._synced = self.head.end

    @property
    def durable(self) -> int:
        """The own log is on disk up to here."""
        return self._synced

    def handle(self, event: Event) -> Instruction:
        """Take an event, and return what to do about it."""
        if isinstance(event, Welcomed):
            return self._compare(event.head)
        if isinstance(event, Received):
            if not event.content:
                return self._fetch()
            return CopyBytes(event.base, event.position, event.content)
        if isinstance(event, Copied):
            return self._go_on(event)
        if isinstance(event, CutDone):
            self.head, self._synced = event.head, event.head.end
        if isinstance(event, Lost):
            self._take(event.kept)
        return Greet()

    def _go_on(self, event: Copied) -> Instruction:
        head = self.head
        # Not one whole entry: it is larger than what was asked for.
        stuck = event.end == head.end
        self._max_bytes = self._max_bytes * 2 if stuck else FIRST_BYTES
        self._take(event)
        return self._fetch()

    def _take(self, copied: Copied) -> None:
        head = self.head
        self.head = LogHead(head.log, copied.epochs, head.begin, copied.end)
        self._synced = copied.synced

    def _fetch(self) -> Fetch:
        return Fetch(self.head.end, self._synced, self._max_bytes)

    def _compare(self, theirs: LogHead) -> Instruction:
        """Decide where to go on, once the primary's log is known."""
        self.primary = theirs
        mine = self.head
        if mine.end == mine.begin and not mine.epochs.epochs:
            start = theirs.newest if self.from_newest else theirs.begin
            if start != mine.begin:
                return Restart(start, "it is empty, and the primary's log begins later")
            self.head = LogHead(theirs.log, mine.epochs, mine.begin, mine.end)
            return self._fetch()
        if mine.log != theirs.log:
            return Halt(
                f"this folder holds another log ({mine.log or 'never copied'}) than the primary "
                f"({theirs.log})",
                "follow with an empty data folder, or name the broker that this one followed",
            )
        if mine.epochs.latest > theirs.epochs.latest:
            return Halt(
                f"this log has epoch {mine.epochs.latest}, the primary's only "
                f"{theirs.epochs.latest}: another broker was promoted since",
                "follow the broker that was promoted",
            )
        return self._join(mine, theirs)

    def _join(self, mine: LogHead, theirs: LogHead) -> Instruction:
        common = common_point(mine.epochs, mine.end, theirs.epochs, theirs.end)
        if common < theirs.begin or common < mine.begin:
            start = theirs.newest if self.from_newest else theirs.begin
            why = f"its log goes up to {common}, and the primary's begins at {theirs.begin}"
            return Restart(start, why)
        if common < mine.end:
            return TruncateLog(common)
        return self._fetch()
