"""The survey of a commit log: a walk over its files, held against what its checkpoint says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from headrace.store.damage.inspection import Block, LogFile, Stretch, walk
from headrace.store.damage.ledger import Ledger
from headrace.store.entries import NO_UNIT

if TYPE_CHECKING:
    from headrace.store.damage.holes import Hole, QueueFact
    from headrace.store.index import QueueKey

__all__ = ["Evidence", "Survey", "survey"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was known of the queues at one position of the log, which was on disk by then."""

    position: int
    queues: dict[QueueKey, QueueFact]
    #: Compacted topics and since when; leaders' times in office.
    compacted: dict[str, int] = field(default_factory=dict)
    epochs: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Survey:
    """A log as it was found."""

    files: Sequence[LogFile]
    ledger: Ledger
    evidence: Evidence | None
    #: Bytes behind the beginning of the file that follows.
    extras: list[Stretch]

    @property
    def end(self) -> int:
        """One past the last byte that is there."""
        return self.files[-1].end if self.files else 0

    @property
    def vouched(self) -> int:
        """The log was whole up to here once."""
        known = self.evidence.position if self.evidence is not None else 0
        return max(known, self.ledger.synced)

    @property
    def tail(self) -> Hole | None:
        """The rest of an unfinished write at the end, if there is one."""
        last = self.ledger.holes[-1] if self.ledger.holes else None
        if last is None or last.stretch.end < self.end or last.stretch.position < self.vouched:
            return None
        return last

    @property
    def damage(self) -> list[Hole]:
        """The holes that no unfinished write explains, or that have intact entries behind them."""
        tail = self.tail
        return [hole for hole in self.ledger.holes if hole is not tail]

    @property
    def unfinished_unit(self) -> int | None:
        """Where a unit begins that has no end."""
        ledger = self.ledger
        if ledger.unit == NO_UNIT or (self.damage and self.damage[-1].stretch.end >= self.end):
            return None
        return ledger.unit_from


def survey(
    files: Sequence[LogFile],
    folder: Path,
    evidence: Evidence | None,
    progress: Callable[[int], None],
    *,
    deep: bool = False,
) -> Survey:
    """Walk over a log. Caller: opens the files, and closes them."""
    ledger = Ledger(files[0].base if files else 0, deep=deep)
    extras: list[Stretch] = []
    pending = evidence
    for found in walk(files, progress=progress):
        parts: Sequence[Block | Stretch | None] = [found]
        if pending is not None and isinstance(found, Block) and found.end > pending.position:
            parts = found.split(pending.position)
        for part in parts:
            if pending is not None and _begin(part) >= pending.position:
                ledger.expect(pending.position, pending.queues, trusted=False)
                pending = None
            _take(ledger, part, extras)
    end = files[-1].end if files else 0
    if pending is not None:
        if end < pending.position:
            path = files[-1].path if files else folder / f"{0:020d}.log"
            ledger.take_stretch(Stretch(path, end, pending.position, "missing"))
        ledger.expect(pending.position, pending.queues, trusted=False)
    ledger.bear(_births(folder.parent))
    if evidence is not None:
        ledger.compacted = ledger.compacted or evidence.compacted
        ledger.epochs = ledger.epochs or evidence.epochs
    ledger.finish()
    return Survey(files, ledger, evidence, extras)


def _births(store: Path) -> Iterator[tuple[QueueKey, int]]:
    """Read where queues began from the names of their folders."""
    for kind in ("index", "compaction"):
        for path in (store / kind).glob("*/*-*"):
            queue_id, _, birth = path.name.partition("-")
            if queue_id.isdigit() and birth.isdigit():
                yield (unquote(path.parent.name), int(queue_id)), int(birth)


def _begin(part: Block | Stretch | None) -> int:
    if part is None:
        return -1
    return part.entries[0].position if isinstance(part, Block) else part.position


def _take(ledger: Ledger, part: Block | Stretch | None, extras: list[Stretch]) -> None:
    if isinstance(part, Block):
        ledger.take_block(part)
    elif part is not None and part.kind == "extra":
        extras.append(part)
    elif part is not None:
        ledger.take_stretch(part)
