"""Repairing a store: a plan that says what would be done and lost, then the doing of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import StoreError
from headrace.store.checkpoint import read_checkpoint
from headrace.store.checks import check_checkpoint, check_index_files
from headrace.store.examination import evidence_of, survey_log
from headrace.store.fileops import FileOps, replace_file
from headrace.store.folder_lock import FolderLock
from headrace.store.ledger import QueueFact
from headrace.store.log_repair import LogRepair, apply_rewrites, plan_log_repair
from headrace.store.settings import StoreSettings
from headrace.store.store import MessageStore
from headrace.store.survey import Evidence

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

    def __bool__(self) -> bool:
        return bool(self.log) or self.rebuilds

    @property
    def losses(self) -> list[Loss]:
        """What is lost: the bytes of it are damaged already."""
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
    return RepairPlan(folder, _aside(folder), log, evidence, rebuilds=bool(wrong))


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
    ops.rename(plan.aside / _PLAN, plan.aside / _REPORT)
    ops.sync_directory(plan.aside)


def _notes(plan: RepairPlan) -> bytes:
    known = plan.evidence
    queues = sorted((*key, *fact) for key, fact in known.queues.items()) if known else []
    lost = [str(loss) for loss in plan.losses]
    notes = _Notes(lost, known.position if known else -1, queues)
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
            return Evidence(notes.position, facts)
    return None


def _aside(folder: Path) -> Path:
    taken = [int(path.name) for path in (folder / "damaged").glob("*") if path.name.isdigit()]
    return folder / "damaged" / f"{max(taken, default=0) + 1:04d}"
