"""Examining a store: what is damaged, where, and what that means; nothing is changed."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import StoreError
from headrace.store.checkpoint import read_checkpoint
from headrace.store.damage.checks import check_checkpoint, check_index_files, check_staged_parts
from headrace.store.damage.commits import (
    NoCommits,
    no_commits_of_compaction_logs,
    stays_closed,
)
from headrace.store.damage.compaction_repair import check_compaction_logs
from headrace.store.damage.findings import Finding
from headrace.store.damage.holes import QueueFact
from headrace.store.damage.inspection import LogFile, Stretch, find_log_files
from headrace.store.damage.survey import Evidence, Survey, survey
from headrace.store.fileops import FileOps

if TYPE_CHECKING:
    from headrace.store.checkpoint import LoadedCheckpoint
    from headrace.store.damage.holes import Hole

__all__ = ["Examination", "evidence_of", "examine_store", "holder_of", "survey_log"]


@dataclass(frozen=True, slots=True)
class Examination:
    """What an examination found."""

    folder: Path
    findings: list[Finding]
    #: Intact entries and records of the log, queues, and bytes read.
    entries: int
    records: int
    queues: int
    bytes: int
    seconds: float
    #: Process that has the store open, so that its end moves; None if none has.
    open_in: str | None

    @property
    def damage(self) -> list[Finding]:
        """What is damaged; the rest are remarks."""
        return [finding for finding in self.findings if finding.severity == "damage"]


def holder_of(folder: Path) -> str | None:
    """Name the process that has a store open; None when none has."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
    finally:
        os.close(fd)
    return None


@contextmanager
def survey_log(
    folder: Path,
    evidence: Evidence | None,
    ops: FileOps,
    progress: Callable[[int], None],
    *,
    deep: bool = False,
) -> Iterator[Survey]:
    """Survey the log of a store; its files stay open as long as the context lasts."""
    files = find_log_files(folder / "log", ops)
    try:
        yield survey(files, folder / "log", evidence, progress, deep=deep)
    finally:
        for file in files:
            ops.close(file.fd)


def evidence_of(checkpoint: LoadedCheckpoint | None) -> Evidence | None:
    """Give what a checkpoint knows of the queues."""
    if checkpoint is None:
        return None
    queues = {
        (saved.topic, saved.queue_id): QueueFact(saved.count + saved.tail, saved.birth)
        for saved in checkpoint.table.queues
    }
    table = checkpoint.table
    return Evidence(table.position, queues, table.compacted, table.epochs)


def examine_store(
    folder: Path,
    *,
    deep: bool = False,
    ops: FileOps | None = None,
    progress: Callable[[int], None] = lambda _done: None,
) -> Examination:
    """Examine a store without changing a byte of it.

    A store that a broker has open may be examined, too: what is written meanwhile is left out.

    Parameters
    ----------
    deep
        Whether to look at every record, not at the checksum of every entry only.
    progress
        Is told how many bytes were read since it was told last.

    Raises
    ------
    StoreError
        The folder holds no store, or the disk does not give its bytes.
    """
    ops = ops or FileOps()
    if not (folder / "log").is_dir():
        raise StoreError(f"{folder} holds no store", hint="name the folder that holds log/")
    began, holder = time.monotonic(), holder_of(folder)
    checkpoint = read_checkpoint(folder / "checkpoint", ops)
    with survey_log(folder, evidence_of(checkpoint), ops, progress, deep=deep) as found:
        findings = list(_of_log(found, is_open=holder is not None))
        no_commits = list(_no_commits(found))
        size = sum(file.end - file.base for file in found.files)
    ledger = found.ledger
    findings += check_checkpoint(folder, checkpoint, ledger)
    if checkpoint is not None:
        findings += check_index_files(folder, checkpoint, ops)
    findings += check_staged_parts(folder, ops)
    findings += check_compaction_logs(folder, ops)
    findings += [each.finding() for each in no_commits]
    findings += no_commits_of_compaction_logs(folder, no_commits, ops)
    return Examination(
        folder,
        findings,
        ledger.entries,
        ledger.records,
        len(ledger.next_offsets()),
        size,
        time.monotonic() - began,
        holder,
    )


def _of_log(found: Survey, *, is_open: bool) -> Iterator[Finding]:
    ledger = found.ledger
    for hole in found.damage:
        yield _of_hole(hole, found)
    for extra in found.extras:
        text = f"{extra.size} bytes stand behind the beginning of the next file"
        yield _of_stretch(extra, found, text, "a repair keeps them aside and cuts them off")
    for complaint in ledger.complaints:
        file = _file_at(found, complaint.position)
        yield Finding(
            "damage",
            file.path,
            f"the entry {complaint.text}",
            "the file was changed by something else than this store: put it back from a copy",
            offset=complaint.position - file.base,
            position=complaint.position,
        )
    for position, losses in ledger.fenced:
        file = _file_at(found, position)
        yield Finding(
            "remark",
            file.path,
            "a fence that a repair laid",
            "what stood here is lost, readers go on behind it"
            + stays_closed(losses, ledger.next_offsets()),
            offset=position - file.base,
            position=position,
            losses=losses,
        )
    yield from _of_tail(found, is_open=is_open)


def _no_commits(found: Survey) -> Iterator[NoCommits]:
    for key, entries in sorted(found.ledger.no_commits.items()):
        position = entries[0][0]
        file = _file_at(found, position)
        offsets = {offset for _, held in entries for offset in held}
        yield NoCommits(key, file.path, position - file.base, position, offsets)


def _of_hole(hole: Hole, found: Survey) -> Finding:
    stretch = hole.stretch
    if stretch.kind == "missing":
        text = f"{stretch.size} bytes of the log are missing"
    else:
        text = f"{stretch.size} bytes do not match their checksum"
    refused = stretch.position < found.ledger.synced or stretch.end < found.vouched
    means = (
        "the store may refuse to open, or fails reads of it; a repair fences it off"
        if refused
        else "the next start takes it for an unfinished write and cuts the log here; "
        "a repair keeps what is behind it"
    ) + stays_closed(hole.losses, found.ledger.next_offsets())
    return _of_stretch(stretch, found, text, means, hole)


def _of_stretch(
    stretch: Stretch, found: Survey, text: str, means: str, hole: Hole | None = None
) -> Finding:
    bases = [file.base for file in found.files if file.path == stretch.path]
    base = bases[0] if bases else stretch.position
    return Finding(
        "damage",
        stretch.path,
        text,
        means,
        offset=stretch.position - base,
        size=stretch.size,
        position=stretch.position,
        losses=tuple(hole.losses) if hole is not None else (),
    )


def _of_tail(found: Survey, *, is_open: bool) -> Iterator[Finding]:
    if found.tail is not None:
        stretch = found.tail.stretch
        base = _file_at(found, stretch.position).base
        means = "it is being written" if is_open else "the next start cuts it off"
        yield Finding(
            "remark",
            stretch.path,
            f"{stretch.size} bytes of an unfinished write",
            f"{means}; nobody was told that it is kept",
            offset=stretch.position - base,
            size=stretch.size,
            position=stretch.position,
        )
    if found.unfinished_unit is not None:
        file = _file_at(found, found.unfinished_unit)
        means = "it is being written" if is_open else "the next start cuts it off"
        yield Finding(
            "remark",
            file.path,
            "a unit without an end",
            f"{means}; no reader has seen it",
            offset=found.unfinished_unit - file.base,
            position=found.unfinished_unit,
        )


def _file_at(found: Survey, position: int) -> LogFile:
    return next((file for file in reversed(found.files) if file.base <= position), found.files[0])
