"""Examining a store: what is damaged, where, and what that means; nothing is changed."""

from __future__ import annotations

import fcntl
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.errors import CorruptLogError, HeadraceError, StoreError
from headrace.protocol.layout import queue_offset_of, record_size_at
from headrace.store.catalog import secret_in
from headrace.store.checkpoint import LoadedCheckpoint, SavedQueue, read_checkpoint
from headrace.store.compaction.offset_map import KeyDigest
from headrace.store.damage import inspection, log_repair
from headrace.store.damage.ledger import DamageLedger, Evidence, Hole, QueueFact, Survey, survey
from headrace.store.entries import Loss, Verification
from headrace.store.fileops import FileOps, replace_file
from headrace.store.index import UNIT, queue_folder
from headrace.store.log import CommitLog, GoneError
from headrace.store.settings import StoreSettings
from headrace.store.staging import whole_bytes
from headrace.store.store import FolderLock, MessageStore

# Checks of what a store keeps beside its log: checkpoint, index files, staged parts.

_DERIVED = "it is made again from the log at the next start; nothing is lost"
_REPLANNED = "a batch that was not committed yet is planned anew; nothing is lost"


def check_checkpoint(
    folder: Path, checkpoint: LoadedCheckpoint | None, ledger: DamageLedger
) -> Iterator[inspection.Finding]:
    """Hold a checkpoint against the log."""
    path = folder / "checkpoint"
    if checkpoint is None:
        if path.exists():
            yield inspection.Finding("damage", path, "does not match its checksum", _DERIVED)
        return
    if checkpoint.table.begin < ledger.begin:
        text = f"speaks of a log that begins at position {checkpoint.table.begin}"
        means = f"it begins at {ledger.begin} now: files were deleted by retention, or are lost"
        yield inspection.Finding("remark", path, text, means)
    if checkpoint.table.position > ledger.end:
        text = f"speaks of position {checkpoint.table.position}, the log ends at {ledger.end}"
        yield inspection.Finding(
            "damage", path, text, "the end of the log is lost, or it is of another log"
        )


def check_index_files(
    folder: Path, checkpoint: LoadedCheckpoint, ops: FileOps
) -> Iterator[inspection.Finding]:
    """Hold the index files against the checksums in a checkpoint."""
    units = checkpoint.table.file_units
    for saved in checkpoint.table.queues:
        place = queue_folder(folder / "index", (saved.topic, saved.queue_id), saved.birth)
        begin = saved.floor // units * units
        for number, crc in enumerate(saved.checksums):
            base = begin + number * units
            path = place / f"{base:020d}.idx"
            first, last = max(base, saved.floor), min(base + units, saved.count)
            text = _index_fault(path, first - base, last - base, crc, ops)
            if text is not None:
                what = f"{text} (offsets {first} to {last - 1} of {_name(saved)})"
                yield inspection.Finding("damage", path, what, _DERIVED)


def _index_fault(path: Path, first: int, last: int, crc: int, ops: FileOps) -> str | None:
    try:
        content = ops.read_bytes(path)[first * UNIT.itemsize : last * UNIT.itemsize]
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if len(content) < (last - first) * UNIT.itemsize:
        return "is too short"
    return None if zlib.crc32(content) == crc else "does not match its checksum"


def _name(saved: SavedQueue) -> str:
    return f"topic {saved.topic!r}, queue {saved.queue_id}"


def check_staged_parts(folder: Path, ops: FileOps) -> Iterator[inspection.Finding]:
    """Yield a finding for each staged part that does not end with a whole chunk."""
    for path in sorted((folder / "staging").glob("*/*.part")):
        try:
            content = ops.read_bytes(path)
            good = whole_bytes(path, content)
        except FileNotFoundError:
            continue  # dropped meanwhile
        except (OSError, HeadraceError) as error:
            yield inspection.Finding("damage", path, f"cannot be read: {error}", _REPLANNED)
            continue
        if good < len(content):
            size = len(content) - good
            text = "holds bytes that are no whole chunk"
            yield inspection.Finding("remark", path, text, _REPLANNED, offset=good, size=size)


@dataclass(frozen=True, slots=True)
class Examination:
    """What an examination found."""

    folder: Path
    findings: list[inspection.Finding]
    #: Intact entries and records of the log, queues, and bytes read.
    entries: int
    records: int
    queues: int
    bytes: int
    seconds: float
    #: Process that has the store open, so that its end moves; None if none has.
    open_in: str | None

    @property
    def damage(self) -> list[inspection.Finding]:
        """What is damaged; the rest are remarks."""
        return [finding for finding in self.findings if finding.severity == "damage"]


def holder_of(folder: Path) -> str | None:
    """Return the process that has a store open, or None if none has."""
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
    files = inspection.find_log_files(folder / "log", ops)
    try:
        yield survey(files, folder / "log", evidence, progress, deep=deep)
    finally:
        for file in files:
            ops.close(file.fd)


def evidence_of(checkpoint: LoadedCheckpoint | None) -> Evidence | None:
    """Return what a checkpoint knows of the queues."""
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
        The folder holds no store, or the disk does not return its bytes.
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
    findings += log_repair.check_compaction_logs(folder, ops)
    findings += [each.finding() for each in no_commits]
    findings += inspection.no_commits_of_compaction_logs(folder, no_commits, ops)
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


def _of_log(found: Survey, *, is_open: bool) -> Iterator[inspection.Finding]:
    ledger = found.ledger
    for hole in found.damage:
        yield _of_hole(hole, found)
    for extra in found.extras:
        text = f"{extra.size} bytes stand behind the beginning of the next file"
        yield _of_stretch(extra, found, text, "a repair keeps them aside and cuts them off")
    for complaint in ledger.complaints:
        file = _file_at(found, complaint.position)
        yield inspection.Finding(
            "damage",
            file.path,
            f"the entry {complaint.text}",
            "the file was changed by something else than this store: put it back from a copy",
            offset=complaint.position - file.base,
            position=complaint.position,
        )
    for position, losses in ledger.fenced:
        file = _file_at(found, position)
        yield inspection.Finding(
            "remark",
            file.path,
            "a fence that a repair laid",
            "what stood here is lost, readers go on behind it"
            + inspection.stays_closed(losses, ledger.next_offsets()),
            offset=position - file.base,
            position=position,
            losses=losses,
        )
    yield from _of_tail(found, is_open=is_open)


def _no_commits(found: Survey) -> Iterator[inspection.NoCommits]:
    for key, entries in sorted(found.ledger.no_commits.items()):
        position = entries[0][0]
        file = _file_at(found, position)
        offsets = {offset for _, held in entries for offset in held}
        yield inspection.NoCommits(key, file.path, position - file.base, position, offsets)


def _of_hole(hole: Hole, found: Survey) -> inspection.Finding:
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
    ) + inspection.stays_closed(hole.losses, found.ledger.next_offsets())
    return _of_stretch(stretch, found, text, means, hole)


def _of_stretch(
    stretch: inspection.DamagedRange, found: Survey, text: str, means: str, hole: Hole | None = None
) -> inspection.Finding:
    bases = [file.base for file in found.files if file.path == stretch.path]
    base = bases[0] if bases else stretch.position
    return inspection.Finding(
        "damage",
        stretch.path,
        text,
        means,
        offset=stretch.position - base,
        size=stretch.size,
        position=stretch.position,
        losses=tuple(hole.losses) if hole is not None else (),
    )


def _of_tail(found: Survey, *, is_open: bool) -> Iterator[inspection.Finding]:
    if found.tail is not None:
        stretch = found.tail.stretch
        base = _file_at(found, stretch.position).base
        means = "it is being written" if is_open else "the next start cuts it off"
        yield inspection.Finding(
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
        yield inspection.Finding(
            "remark",
            file.path,
            "a unit without an end",
            f"{means}; no reader has seen it",
            offset=found.unfinished_unit - file.base,
            position=found.unfinished_unit,
        )


def _file_at(found: Survey, position: int) -> inspection.LogFile:
    return next((file for file in reversed(found.files) if file.base <= position), found.files[0])


# Repairing a store: a plan that says what would be done and lost, then the doing of it.

logger = logging.getLogger(__name__)

_PLAN, _REPORT = "plan.json", "report.json"


class _Notes(msgspec.Struct, frozen=True):
    """What a repair keeps beside the old files: also what a second one must know."""

    lost: list[str]
    #: Position that the checkpoint spoke of, -1 without one.
    position: int
    #: Topic, queue id, next offset and birth of each queue there.
    queues: list[tuple[str, int, int, int]]
    compacted: dict[str, int] = {}
    epochs: list[tuple[int, int, int]] = []


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair would do."""

    folder: Path
    #: Where the old files are kept.
    aside: Path
    log: log_repair.LogRepair
    evidence: Evidence | None
    #: Whether checkpoint and indexes are made again from the log.
    rebuilds: bool
    #: Compaction logs that are damaged; after the repair they say what was lost and restored.
    queues: list[log_repair.QueueRepair]
    #: Compaction logs of which not even the list of files is left.
    hopeless: list[log_repair.QueueRepair]

    def __bool__(self) -> bool:
        return bool(self.log or self.queues) or self.rebuilds

    @property
    def losses(self) -> list[Loss]:
        """What the commit log has lost: the bytes of it are damaged already."""
        return self.log.losses


def repair_store(
    folder: Path,
    confirm: Callable[[RepairPlan], bool],
    *,
    ops: FileOps | None = None,
    progress: Callable[[int], None] = lambda _done: None,
) -> RepairPlan | None:
    """Repair a store that no process has open; return what was done, or None if it was refused.

    Parameters
    ----------
    confirm
        Is shown what would be done, if anything, before a byte is changed.

    Raises
    ------
    StoreLockedError
        A process has the store open.
    CorruptLogError
        What is damaged cannot be repaired; nothing was changed.
    """
    ops = ops or FileOps()
    if not (folder / "log").is_dir():
        raise StoreError(f"{folder} holds no store", hint="name the folder that holds log/")
    lock = FolderLock(folder)
    try:
        plan = plan_repair(folder, ops, progress)
        if not plan:
            return plan
        if not confirm(plan):
            return None
        apply_repair(plan, ops)
    finally:
        lock.release()
    # The indexes are made again, and that the store opens is seen here.
    MessageStore.open(folder, StoreSettings(min_free_space=0), ops=ops).close()
    return plan


def plan_repair(
    folder: Path, ops: FileOps, progress: Callable[[int], None] = lambda _done: None
) -> RepairPlan:
    """Return what a repair of a store would do. Caller: has the folder's lock."""
    path = folder / "checkpoint"
    checkpoint = read_checkpoint(path, ops)
    evidence = evidence_of(checkpoint)
    if evidence is None:
        evidence = _evidence_of_unfinished(folder, ops)
    with survey_log(folder, evidence, ops, progress) as found:
        log = log_repair.plan_log_repair(found, folder / "log")
        wrong = list(check_checkpoint(folder, checkpoint, found.ledger))
    if checkpoint is not None:
        wrong += check_index_files(folder, checkpoint, ops)
    queues: list[log_repair.QueueRepair] = []
    hopeless: list[log_repair.QueueRepair] = []
    for queue in log_repair.find_damaged_queues(folder, ops):
        (queues if queue.has_manifest(ops) else hopeless).append(queue)
    return RepairPlan(
        folder,
        _aside(folder),
        log,
        evidence,
        any(found.severity == "damage" for found in wrong),
        queues,
        hopeless,
    )


def apply_repair(plan: RepairPlan, ops: FileOps) -> None:
    """Do what a plan says. Caller: has the folder's lock.

    The notes come first, then the checkpoint goes: from then on nothing speaks of places that
    are about to change.
    """
    ops.make_directory(plan.aside)
    replace_file(ops, plan.aside / _PLAN, _notes(plan))
    checkpoint = plan.folder / "checkpoint"
    if checkpoint.exists():
        ops.rename(checkpoint, plan.aside / "checkpoint")
        ops.sync_directory(plan.aside)
        ops.sync_directory(plan.folder)
    log_repair.apply_rewrites(plan.log.rewrites, plan.aside / "log", ops)
    _repair_queues(plan, ops)
    ops.rename(plan.aside / _PLAN, plan.aside / _REPORT)
    ops.sync_directory(plan.aside)


def _repair_queues(plan: RepairPlan, ops: FileOps) -> None:
    if not plan.queues:
        return
    secret = secret_in(plan.folder / "compaction" / "secret", ops)

    def make_digest(algorithm: str) -> KeyDigest:
        return KeyDigest("md5" if algorithm == "md5" else "blake2b", secret)

    log = CommitLog(plan.folder / "log", ops, segment_size=1)
    # Nothing is taken from it unchecked.
    verification = Verification(log, log.end)

    def fetch(position: int, offset: int) -> bytes | None:
        try:
            return _record_at(log, verification, position, offset)
        except (CorruptLogError, GoneError):
            return None

    try:
        for queue in plan.queues:
            log_repair.repair_queue(queue, plan.aside / "compaction", ops, make_digest, fetch)
    finally:
        log.close()


def _record_at(
    log: CommitLog, verification: Verification, position: int, offset: int
) -> bytes | None:
    if not log.begin <= position < log.end:
        return None
    segment = log.segment_at(position)
    rest = segment.view(position, segment.end)
    size = record_size_at(rest, position)
    if size is None or size > len(rest) or queue_offset_of(rest) != offset:
        return None
    verification.check(position, position + size)
    return bytes(rest[:size])


def _notes(plan: RepairPlan) -> bytes:
    known = plan.evidence
    queues = sorted((*key, *fact) for key, fact in known.queues.items()) if known else []
    lost = [str(loss) for loss in plan.losses]
    notes = _Notes(lost, -1, queues)
    if known is not None:
        notes = _Notes(lost, known.position, queues, known.compacted, known.epochs)
    return msgspec.json.format(msgspec.json.encode(notes))


def _evidence_of_unfinished(folder: Path, ops: FileOps) -> Evidence | None:
    """Read what the checkpoint said that a repair took away before it was killed."""
    for path in sorted((folder / "damaged").glob("*/" + _PLAN), reverse=True):
        try:
            notes = msgspec.json.decode(ops.read_bytes(path), type=_Notes)
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s cannot be read: %s", path, error)
            continue
        if notes.position >= 0:
            facts = {(topic, queue): QueueFact(*fact) for topic, queue, *fact in notes.queues}
            return Evidence(notes.position, facts, notes.compacted, notes.epochs)
    return None


def _aside(folder: Path) -> Path:
    taken = [int(path.name) for path in (folder / "damaged").glob("*") if path.name.isdigit()]
    return folder / "damaged" / f"{max(taken, default=0) + 1:04d}"
