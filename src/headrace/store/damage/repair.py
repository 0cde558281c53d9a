"""Repairing a store: a plan that says what would be done and lost, then the doing of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import CorruptLogError, StoreError
from headrace.store.checkpoint import read_checkpoint
from headrace.store.compaction.digests import KeyDigest
from headrace.store.damage.checks import check_checkpoint, check_index_files
from headrace.store.damage.compaction_repair import QueueRepair, find_damaged_queues, repair_queue
from headrace.store.damage.examination import evidence_of, survey_log
from headrace.store.damage.holes import QueueFact
from headrace.store.damage.log_repair import LogRepair, apply_rewrites, plan_log_repair
from headrace.store.damage.survey import Evidence
from headrace.store.fileops import FileOps, replace_file
from headrace.store.folder_lock import FolderLock
from headrace.store.log import CommitLog
from headrace.store.queue_logs import secret_in
from headrace.store.record import queue_offset_of, record_size_at
from headrace.store.segments import GoneError
from headrace.store.settings import StoreSettings
from headrace.store.store import MessageStore
from headrace.store.verification import Verification

if TYPE_CHECKING:
    from headrace.store.fences import Loss

__all__ = ["RepairPlan", "apply_repair", "plan_repair", "repair_store"]

_logger = logging.getLogger(__name__)

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
    log: LogRepair
    evidence: Evidence | None
    #: Whether checkpoint and indexes are made again from the log.
    rebuilds: bool
    #: Compaction logs that are damaged; after the repair they say what was lost and restored.
    queues: list[QueueRepair]
    #: Compaction logs of which not even the list of files is left.
    hopeless: list[QueueRepair]

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
    """Repair a store that no process has open; what was done, or None when that was refused.

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
    """Look at a store, and say what a repair would do. Caller: has the folder's lock."""
    path = folder / "checkpoint"
    checkpoint = read_checkpoint(path, ops)
    evidence = evidence_of(checkpoint)
    if evidence is None:
        evidence = _evidence_of_unfinished(folder, ops)
    with survey_log(folder, evidence, ops, progress) as found:
        log = plan_log_repair(found, folder / "log")
        wrong = list(check_checkpoint(folder, checkpoint, found.ledger))
    if checkpoint is not None:
        wrong += check_index_files(folder, checkpoint, ops)
    queues: list[QueueRepair] = []
    hopeless: list[QueueRepair] = []
    for queue in find_damaged_queues(folder, ops):
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
    apply_rewrites(plan.log.rewrites, plan.aside / "log", ops)
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
            repair_queue(queue, plan.aside / "compaction", ops, make_digest, fetch)
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
            _logger.warning("%s cannot be read: %s", path, error)
            continue
        if notes.position >= 0:
            facts = {(topic, queue): QueueFact(*fact) for topic, queue, *fact in notes.queues}
            return Evidence(notes.position, facts, notes.compacted, notes.epochs)
    return None


def _aside(folder: Path) -> Path:
    taken = [int(path.name) for path in (folder / "damaged").glob("*") if path.name.isdigit()]
    return folder / "damaged" / f"{max(taken, default=0) + 1:04d}"
