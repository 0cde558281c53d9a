"""Commit topics: records that are no commits, and newest commits that are lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from headrace.errors import HeadraceError
from headrace.protocol.layout import record_starts
from headrace.protocol.transactions import COMMIT_TOPIC_SUFFIX, stored_commit
from headrace.store.compaction.recovery import stretches
from headrace.store.damage.findings import Finding
from headrace.store.reading import queue_offset_of

if TYPE_CHECKING:
    from headrace.store.entries import Loss
    from headrace.store.fileops import Buffer, FileOps
    from headrace.store.index import QueueKey

__all__ = ["NoCommits", "no_commits_in", "no_commits_of_compaction_logs", "stays_closed"]

_MEANS = "the broker passes it over, no repair is needed; the job goes on from its newest commit"


@dataclass(slots=True)
class NoCommits:
    """Records of one queue of a commit topic that are no commits."""

    key: QueueKey
    #: Where the entry of the first one stands: a byte of a file, and of the commit log.
    path: Path
    offset: int
    position: int | None
    offsets: set[int] = field(default_factory=set)

    def finding(self) -> Finding:
        """Say where they are."""
        number, (topic, queue_id) = len(self.offsets), self.key
        which = "record is no commit" if number == 1 else f"{number} records are no commits"
        text = f"{which}: topic {topic!r}, queue {queue_id}, offset {min(self.offsets)}"
        more = "" if number == 1 else f" to {max(self.offsets)}"
        return Finding(
            "remark",
            self.path,
            ("a " if number == 1 else "") + text + more,
            _MEANS,
            offset=self.offset,
            position=self.position,
        )


def no_commits_in(records: Buffer) -> list[int]:
    """Give the offsets of records of a commit topic that are no commits."""
    view = memoryview(records)
    try:
        starts = record_starts(view).tolist()
    except HeadraceError:
        return []  # what is malformed is told of elsewhere
    ends = [*starts[1:], len(view)]
    pieces = [view[start:end] for start, end in zip(starts, ends, strict=True)]
    return [queue_offset_of(piece) for piece in pieces if stored_commit(piece) is None]


def no_commits_of_compaction_logs(
    store: Path, known: Iterable[NoCommits], ops: FileOps
) -> Iterator[Finding]:
    """Name records that are no commits and that the commit log does not hold any more."""
    told = {(each.key, offset) for each in known for offset in each.offsets}
    for folder in sorted((store / "compaction").glob(f"*{COMMIT_TOPIC_SUFFIX}/*-*")):
        key = unquote(folder.parent.name), int(folder.name.partition("-")[0])
        for path in sorted(folder.glob("*.data")):
            found = NoCommits(key, path, 0, None)
            for at, offsets in _entries_of(path, ops):
                fresh = {offset for offset in offsets if (key, offset) not in told}
                if fresh and not found.offsets:
                    found.offset = at
                found.offsets |= fresh
            if found.offsets:
                yield found.finding()


def _entries_of(path: Path, ops: FileOps) -> Iterator[tuple[int, list[int]]]:
    try:
        for stretch in stretches(path, 0, path.stat().st_size, ops):
            for entry in stretch.entries:
                yield entry.position, no_commits_in(stretch.payload(entry))
    except FileNotFoundError:
        return  # replaced meanwhile


def stays_closed(losses: Iterable[Loss], next_offsets: dict[QueueKey, int]) -> str:
    """Say which jobs do not open as their newest commit is among what is lost."""
    topics = [
        repr(loss.topic)
        for loss in losses
        if loss.topic.endswith(COMMIT_TOPIC_SUFFIX)
        and not loss.is_delete
        and loss.end == next_offsets.get((loss.topic, loss.queue_id))
    ]
    if not topics:
        return ""
    return f"; the job of topic {', '.join(topics)} does not open: its newest commit is lost"
