"""The ledger of a walk: which offsets each queue holds, and which were lost where.

A lost offset is known from its neighbours, from what a checkpoint or a STATE entry says, or from
what is left of the damaged record itself.  Nothing is concluded from damaged bytes that a good
entry contradicts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import CorruptLogError, HeadraceError
from headrace.protocol.layout import (
    MIN_RECORD,
    are_of_one_queue,
    fills_its_size,
    locate,
    queue_of,
    queue_offset_of,
    record_magics,
    record_starts,
)
from headrace.protocol.transactions import COMMIT_TOPIC_SUFFIX
from headrace.store.damage.inspection import (
    DamagedRange,
    IntactEntries,
    IntactEntry,
    LogFile,
    no_commits_in,
    walk,
)
from headrace.store.entries import (
    NO_UNIT,
    EntryKind,
    LogState,
    Loss,
    QueueKey,
    QueueState,
    decode_state,
    parse_losses,
)

if TYPE_CHECKING:
    from headrace.store.fileops import Buffer


# A look at every record of an entry: the entry's checksum says only that nothing changed since.


def fault_of_records(payload: Buffer, entry: IntactEntry, *, sparse: bool = False) -> str | None:
    """Return what is wrong with the records of an entry, or None if nothing is.

    Parameters
    ----------
    sparse
        Whether offsets may be left out, as in a compaction log.
    """
    try:
        starts = record_starts(payload)
        if len(starts) != entry.records:
            return f"holds {len(starts)} records, its header says {entry.records}"
        head = locate(payload, starts).head
    except HeadraceError as error:
        return f"holds malformed records ({error.message})"
    steps = np.diff(head["queue_offset"].astype(np.int64))
    if (steps < 1).any() or (not sparse and (steps != 1).any()):
        return "holds records whose offsets do not follow each other"
    if not sparse and (head["position"] != starts + entry.payload_position).any():
        return "holds records that name another place in the log"
    if not are_of_one_queue(payload, starts):
        return "holds records of several queues"
    return None


# Holes: stretches of a log without intact entries, and what is known of what stood there.

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


@dataclass(slots=True, eq=False)
class Hole:
    """A stretch without intact entries, and what was lost in it."""

    stretch: DamagedRange
    deletes: set[str] = field(default_factory=set)
    #: First lost offset and one past the last.
    lost: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    #: Where queues began, as far as it is known; one table for all holes.
    births: dict[QueueKey, int] = field(default_factory=dict)

    @property
    def losses(self) -> list[Loss]:
        """What was lost: deletes first, as offsets count from them."""
        deletes = [Loss.of_topic(topic) for topic in sorted(self.deletes)]
        return deletes + [
            Loss(*key, *span, self.births.get(key, -1) if span[0] == 0 else -1)
            for key, span in sorted(self.lost.items())
        ]

    @property
    def room(self) -> int:
        """Records that fit into what is not accounted for."""
        known = sum(end - first for first, end in self.lost.values())
        return max(self.stretch.size // MIN_RECORD - known, 0)


@dataclass(frozen=True, slots=True)
class Complaint:
    """Intact entries that do not fit each other: no damage of the disk explains them."""

    position: int
    text: str


class QueueFact(NamedTuple):
    """What is known of a queue at a position of the log."""

    next_offset: int
    #: Log position of its first entry: a topic that was deleted and made again has another.
    birth: int


def salvaged_heads(stretch: DamagedRange) -> Iterator[tuple[QueueKey, int]]:
    """Yield the records in damaged bytes whose head still names the place where it stands."""
    for at in record_magics(stretch.content, stretch.position):
        record = memoryview(stretch.content)[at:]
        try:
            key = queue_of(record)
        except CorruptLogError:
            continue
        # A flipped bit in a name must not make a queue that never was.
        if _TOPIC.fullmatch(key[0]) and key[1] >= 0 and fills_its_size(record):
            yield key, queue_offset_of(record)


@dataclass(slots=True)
class _Queue:
    next_offset: int
    #: One past the last entry of it.
    seen: int


class DamageLedger:
    """Takes what a walk gives, in order.

    Parameters
    ----------
    begin
        Position of the first byte that the log holds.
    deep
        Whether to look at every record, not at the first of each entry only.
    """

    def __init__(self, begin: int = 0, *, deep: bool = False) -> None:
        self._begin = begin
        self._deep = deep
        self._queues: dict[QueueKey, _Queue] = {}
        self._names: dict[bytes, str] = {}
        self._births: dict[QueueKey, int] = {}
        #: Where topics were deleted last: nothing of their next life was lost before.
        self._dropped: dict[str, int] = {}
        #: Offsets that damaged bytes speak of, and where.
        self._hints: dict[QueueKey, tuple[int, Hole]] = {}
        self.holes: list[Hole] = []
        self.fenced: list[tuple[int, tuple[Loss, ...]]] = []
        self.complaints: list[Complaint] = []
        #: What stands in commit topics and is not a commit: entries, and the offsets in them.
        self.no_commits: dict[QueueKey, list[tuple[int, list[int]]]] = {}
        self.records = 0
        self.entries = 0
        #: Position of the BEGIN of the unit in progress, and where its first entry stands.
        self.unit = NO_UNIT
        self.unit_from = 0
        #: Next offsets of queues where the log begins, when its state there is lost.
        self.first_offsets: dict[QueueKey, int] | None = None
        #: The unit of the first intact entry behind that.
        self.first_unit = NO_UNIT
        #: Compacted topics and leaders' times in office, as a STATE or a checkpoint says.
        self.compacted: dict[str, int] = {}
        self.epochs: list[tuple[int, int, int]] = []
        #: One past the last intact entry, and the largest proof of what was on disk.
        self.end = begin
        self.synced = 0

    @property
    def begin(self) -> int:
        """Position of the first byte that the log holds."""
        return self._begin

    def state_at_begin(self) -> LogState | None:
        """Return the state with which the log begins, when it is lost and can be told."""
        begin = self._begin
        if self.first_offsets is None or self.first_unit != NO_UNIT:
            return None
        queues = [
            QueueState(*key, self._births.get(key, begin - 1), offset)
            for key, offset in sorted(self.first_offsets.items())
            if self._births.get(key, begin - 1) < begin
        ]
        compacted = {topic: at for topic, at in self.compacted.items() if at < begin}
        epochs = [row for row in self.epochs if row[1] < begin]
        return LogState(0, queues, compacted, epochs)

    def next_offsets(self) -> dict[QueueKey, int]:
        """Return the next offset of every queue."""
        return {key: queue.next_offset for key, queue in self._queues.items()}

    def bear(self, births: Iterable[tuple[QueueKey, int]]) -> None:
        """Take where queues began: the newest life of each counts."""
        for key, birth in births:
            self._births[key] = max(birth, self._births.get(key, -1))

    def take_block(self, block: IntactEntries) -> None:
        """Take intact entries."""
        data: list[IntactEntry] = []
        if not self.entries:
            self.first_unit = block.entries[0].unit
        for entry in block.entries:
            if entry.kind == EntryKind.DATA and entry.unit == self.unit:
                data.append(entry)
                continue
            self._take_data(block, data)
            data = []
            self._take_other(block, entry)
        self._take_data(block, data)
        if block.entries[-1].kind == EntryKind.VOID:
            # What a fence at the very end replaced was the end of the unit.
            self.unit = NO_UNIT
        self.entries += len(block.entries)
        self.end = block.end
        self.synced = max(self.synced, block.entries[-1].synced)

    def take_stretch(self, stretch: DamagedRange) -> None:
        """Take what is not an intact entry."""
        last = self.holes[-1] if self.holes else None
        if last and last.stretch.end == stretch.position and last.stretch.path == stretch.path:
            # What is left of a shortened file, and what is missing behind it.
            last.stretch = replace(last.stretch, end=stretch.end, kind=stretch.kind)
            return
        if stretch.position == self._begin and self._begin:
            self.first_offsets = {}
        hole = Hole(stretch, births=self._births)
        self.holes.append(hole)
        for key, offset in salvaged_heads(stretch):
            if key not in self._hints or self._hints[key][0] <= offset:
                self._hints[key] = (offset + 1, hole)

    def expect(self, position: int, queues: Mapping[QueueKey, QueueFact], *, trusted: bool) -> None:
        """Take what a checkpoint or a STATE entry says of every queue at a position.

        Parameters
        ----------
        trusted
            Whether what cannot be explained is a fault of the log; a checkpoint is derived from
            it, and may be the wrong one.
        """
        self.bear((key, fact.birth) for key, fact in queues.items())
        complaints = len(self.complaints)
        for key, queue in list(self._queues.items()):
            fact, holes = queues.get(key), self._since(queue.seen)
            renewed = (
                fact is None or fact.birth >= queue.seen or fact.next_offset < queue.next_offset
            )
            if renewed and holes and key in self._queues:
                self._restart(key[0], holes[-1])
        covering = [hole.stretch.position for hole in self.holes if hole.stretch.end > position]
        seen = min(covering, default=position)
        for key, fact in queues.items():
            if key in self._queues:
                known = self._queues[key].next_offset
            else:
                known = self._first(key, fact.next_offset) if fact.birth < self._begin else 0
            if known < fact.next_offset:
                self._lose(key, known, fact.next_offset, position)
            self._hints.pop(key, None)
            self._queues[key] = _Queue(max(known, fact.next_offset), seen)
        if not trusted:
            del self.complaints[complaints:]

    def finish(self) -> None:
        """Use what damaged bytes say of queues of which nothing was seen since."""
        for key, (count, hole) in self._hints.items():
            queue = self._queues.get(key)
            known = queue.next_offset if queue else 0
            later = queue is not None and queue.seen > hole.stretch.position
            if not later and 0 < count - known <= hole.room:
                hole.lost[key] = (hole.lost.get(key, (known, 0))[0], count)
                self._queues[key] = _Queue(count, hole.stretch.end)
        self._hints = {}

    def _take_data(self, block: IntactEntries, entries: list[IntactEntry]) -> None:
        if not entries:
            return
        origin = block.entries[0].position
        starts = np.array([entry.payload_position for entry in entries], np.int64) - origin
        try:
            layout = locate(block.view, starts)
        except HeadraceError as error:
            self._take_one_by_one(block, entries, error)
            return
        head, view, names = layout.head, block.view, self._names
        topics = zip(layout.topic_starts.tolist(), layout.topic_ends.tolist(), strict=True)
        ids, offsets = head["queue_id"].tolist(), head["queue_offset"].tolist()
        for entry, (first, last), queue_id, offset in zip(
            entries, topics, ids, offsets, strict=True
        ):
            raw = bytes(view[first:last])
            name = names.get(raw)
            if name is None:
                name = names[raw] = raw.decode("utf-8", "replace")
            self._take_records(entry, (name, queue_id), offset)
            if name.endswith(COMMIT_TOPIC_SUFFIX) and (
                found := no_commits_in(block.payload(entry))
            ):
                self.no_commits.setdefault((name, queue_id), []).append((entry.position, found))
        if self._deep:
            self._look_inside(block, entries, head)

    def _look_inside(
        self, block: IntactEntries, entries: list[IntactEntry], head: npt.NDArray[np.void]
    ) -> None:
        """Check every record; an entry of a single one costs no call of its own."""
        facts = np.array([(e.records, e.payload_size, e.payload_position) for e in entries])
        fits = (head["size"] == facts[:, 1]) & (head["position"] == facts[:, 2])
        for number in np.flatnonzero((facts[:, 0] != 1) | ~fits).tolist():
            entry = entries[number]
            if fault := fault_of_records(block.payload(entry), entry):
                self._complain(entry.position, fault)

    def _take_one_by_one(
        self, block: IntactEntries, entries: list[IntactEntry], error: HeadraceError
    ) -> None:
        if len(entries) == 1:
            self._complain(entries[0].position, f"holds malformed records ({error.message})")
            return
        for entry in entries:
            self._take_data(block, [entry])

    def _take_records(self, entry: IntactEntry, key: QueueKey, offset: int) -> None:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(self._first(key, offset), self._unseen(key[0]))
        if offset != queue.next_offset:
            self._bridge(entry, key, queue, offset)
            queue = self._queues.setdefault(key, queue)
        if self._hints:
            self._hints.pop(key, None)
        queue.next_offset = offset + entry.records
        queue.seen = entry.position + 1
        self.records += entry.records

    def _first(self, key: QueueKey, offset: int) -> int:
        """Return the offset at which a queue begins that is seen for the first time."""
        if self.first_offsets is None or key[0] in self._dropped:
            return 0
        self.first_offsets[key] = offset
        return offset

    def _bridge(self, entry: IntactEntry, key: QueueKey, queue: _Queue, offset: int) -> None:
        """Explain a jump of a queue's offsets by what was lost since it was seen last."""
        holes = self._since(queue.seen)
        known = queue.next_offset
        if offset < known and holes:
            self._restart(key[0], holes[-1])
            self._queues[key] = _Queue(0, holes[-1].stretch.position)
            known = 0
        if offset > known:
            self._lose(key, known, offset, entry.position)
        elif offset < known:
            self._complain(entry.position, f"repeats offset {offset} of queue {key}")

    def _lose(self, key: QueueKey, first: int, end: int, position: int) -> None:
        queue = self._queues.get(key)
        holes = self._since(queue.seen if queue else self._unseen(key[0]))
        if not first and key in self._births:
            holes = [hole for hole in holes if hole.stretch.end > self._births[key]] or holes
        if sum(hole.room for hole in holes) < end - first:
            self._complain(position, f"does not follow offset {first} of queue {key}")
            return
        # The earliest first: what is found out later can only have been lost later.
        for hole in holes:
            taken = min(hole.room, end - first)
            if taken > 0:
                begin = hole.lost.get(key, (first, first))[0]
                hole.lost[key] = (begin, first + taken)
                first += taken

    def _unseen(self, topic: str) -> int:
        """Return since where records of a queue may have been lost of which none was seen."""
        return self._dropped.get(topic, self._begin)

    def _restart(self, topic: str, hole: Hole) -> None:
        hole.deletes.add(topic)
        # What was lost of the deleted topic is of no interest any more.
        hole.lost = {key: span for key, span in hole.lost.items() if key[0] != topic}
        self._forget(topic, hole.stretch.position)

    def _forget(self, topic: str, position: int) -> None:
        self._dropped[topic] = position
        for table in (self._queues, self._hints, self.no_commits):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def _since(self, position: int) -> list[Hole]:
        return [hole for hole in self.holes if hole.stretch.position >= position - 1]

    def _take_other(self, block: IntactEntries, entry: IntactEntry) -> None:
        if entry.kind == EntryKind.DATA:
            self._take_strange_data(block, entry)
        elif entry.kind == EntryKind.BEGIN:
            self._take_begin(entry)
        elif entry.kind == EntryKind.END:
            self._take_end(entry)
        elif entry.kind == EntryKind.DROP_TOPIC:
            self._take_drop(block, entry)
        elif entry.kind == EntryKind.VOID:
            self._take_fence(block, entry)
        elif entry.kind == EntryKind.STATE:
            self._take_state(block, entry)

    def _take_strange_data(self, block: IntactEntries, entry: IntactEntry) -> None:
        """Take data of another unit than the one in progress: marks were lost in between."""
        if not self._is_torn:
            self._complain(entry.position, "belongs to another unit")
        self.unit, self.unit_from = entry.unit, entry.position
        self._take_data(block, [entry])

    def _take_begin(self, entry: IntactEntry) -> None:
        if self.unit != NO_UNIT and not self._is_torn:
            self._complain(entry.position, "begins inside another unit")
        self.unit = self.unit_from = entry.position

    def _take_end(self, entry: IntactEntry) -> None:
        if self.unit != entry.unit and not self._is_torn:
            self._complain(entry.position, "ends a unit that is not whole")
        self.unit = NO_UNIT

    def _take_drop(self, block: IntactEntries, entry: IntactEntry) -> None:
        self.unit = NO_UNIT
        self._forget(str(block.payload(entry), "utf-8", "replace"), entry.position + 1)

    def _take_fence(self, block: IntactEntries, entry: IntactEntry) -> None:
        losses = parse_losses(block.payload(entry))
        self.fenced.append((entry.position, tuple(losses)))
        for loss in losses:
            if loss.is_delete:
                self._forget(loss.topic, entry.position + 1)
            else:
                self._queues[loss.topic, loss.queue_id] = _Queue(loss.end, entry.position + 1)

    def _take_state(self, block: IntactEntries, entry: IntactEntry) -> None:
        try:
            state = decode_state(block.payload(entry))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            self._complain(entry.position, f"is no state ({error})")
            return
        self.compacted, self.epochs = self.compacted or state.compacted, self.epochs or state.epochs
        facts = {
            (each.topic, each.queue_id): QueueFact(each.next_offset, each.birth)
            for each in state.queues
        }
        if entry.position == self._begin:
            begin = self._begin
            self._queues = {key: _Queue(fact.next_offset, begin) for key, fact in facts.items()}
        else:
            self.expect(entry.position, facts, trusted=True)
        if state.unit != self.unit:
            self.unit = state.unit
            self.unit_from = max(state.unit, self._begin)

    @property
    def _is_torn(self) -> bool:
        """Whether marks of units may have been lost."""
        return bool(self.holes or self.fenced)

    def _complain(self, position: int, text: str) -> None:
        self.complaints.append(Complaint(position, text))


# The survey of a commit log: a walk over its files, held against what its checkpoint says.


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
    ledger: DamageLedger
    evidence: Evidence | None
    #: Bytes behind the beginning of the file that follows.
    extras: list[DamagedRange]

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
    ledger = DamageLedger(files[0].base if files else 0, deep=deep)
    extras: list[DamagedRange] = []
    pending = evidence
    for found in walk(files, progress=progress):
        parts: Sequence[IntactEntries | DamagedRange | None] = [found]
        if (
            pending is not None
            and isinstance(found, IntactEntries)
            and found.end > pending.position
        ):
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
            ledger.take_stretch(DamagedRange(path, end, pending.position, "missing"))
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


def _begin(part: IntactEntries | DamagedRange | None) -> int:
    if part is None:
        return -1
    return part.entries[0].position if isinstance(part, IntactEntries) else part.position


def _take(
    ledger: DamageLedger, part: IntactEntries | DamagedRange | None, extras: list[DamagedRange]
) -> None:
    if isinstance(part, IntactEntries):
        ledger.take_block(part)
    elif part is not None and part.kind == "extra":
        extras.append(part)
    elif part is not None:
        ledger.take_stretch(part)
