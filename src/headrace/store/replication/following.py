"""The follower's side, without I/O: what to do next, from what has happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.store.replication.epochs import EpochTable, common_point

__all__ = [
    "Copied",
    "Copy",
    "Cut",
    "CutDone",
    "Event",
    "Fetch",
    "Follower",
    "Greet",
    "Halt",
    "Instruction",
    "LogHead",
    "Lost",
    "Received",
    "Refused",
    "Restart",
    "Welcomed",
]

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
class Copy:
    """Append bytes to the own log."""

    base: int
    position: int
    content: memoryview


@dataclass(frozen=True, slots=True)
class Cut:
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


Instruction = Greet | Fetch | Copy | Cut | Restart | Halt


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
        """Take an event; what to do about it."""
        if isinstance(event, Welcomed):
            return self._compare(event.head)
        if isinstance(event, Received):
            if not event.content:
                return self._fetch()
            return Copy(event.base, event.position, event.content)
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
        """Find where to go on, once the primary's log is known."""
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
            return Cut(common)
        return self._fetch()
