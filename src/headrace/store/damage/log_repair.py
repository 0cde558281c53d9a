"""Repairing a log: damage is fenced off, what it replaces is kept, no good record is dropped.

Every changed file is made anew beside the old one, which gets a second name in a folder of
``damaged``, and then takes its place by one rename.  So a repair that is killed anywhere leaves
files that are whole, old or new, and a second repair does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import CorruptLogError
from headrace.store.entries import HEADER_SIZE, NO_UNIT, EntryKind, pack_header
from headrace.store.fences import Loss, fence_sizes, pack_losses, room_for
from headrace.store.fileops import FileOps, read_all, replace_file, write_all
from headrace.store.state import LogState, encode_state, encode_state_of_size

if TYPE_CHECKING:
    from headrace.store.damage.holes import Hole
    from headrace.store.damage.survey import Survey

__all__ = ["Fence", "LogRepair", "Rewrite", "apply_rewrites", "keep_aside", "plan_log_repair"]

_COPY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Fence:
    """A VOID or STATE entry to be written."""

    position: int
    #: Its bytes, header included.
    size: int
    losses: tuple[Loss, ...] = ()
    #: The state with which a log begins, when that is what stands here.
    state: LogState | None = None

    def content(self) -> bytes:
        """Make the bytes of the entry."""
        position, size = self.position, self.size - HEADER_SIZE
        if self.state is not None:
            kind, payload = EntryKind.STATE, encode_state_of_size(self.state, size)
        else:
            kind, payload = EntryKind.VOID, pack_losses(self.losses, size)
        return pack_header(kind, position, payload, synced=position, unit=NO_UNIT) + payload


@dataclass(slots=True)
class Rewrite:
    """A file to be made anew: stretches of old ones, and fences."""

    target: Path
    #: Position of its first byte.
    base: int
    #: One past its last byte.
    end: int
    #: Old files, in order, and up to which position each counts.
    sources: list[tuple[Path, int, int]]
    fences: list[Fence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LogRepair:
    """What a repair of a log would do."""

    rewrites: list[Rewrite]
    losses: list[Loss]
    #: Where the log is cut, when what is behind is the rest of an unfinished write.
    cut: int | None

    def __bool__(self) -> bool:
        return bool(self.rewrites)


def plan_log_repair(survey: Survey, folder: Path) -> LogRepair:
    """Plan the repair of a log.

    Raises
    ------
    CorruptLogError
        Intact entries contradict each other: something else than a disk did that.
    """
    if survey.ledger.complaints:
        complaint = survey.ledger.complaints[0]
        raise CorruptLogError(
            f"the log in {folder} cannot be repaired: the entry at position {complaint.position} "
            f"{complaint.text}, and no damage explains it",
            hint="nothing was changed; put the log back from a copy of this folder",
        )
    fences = [fence for hole in survey.damage for fence in _fences(hole, _state(survey, hole))]
    end, cut = _end(survey)
    rewrites = [
        rewrite
        for rewrite in _groups(survey, folder, fences, end)
        if rewrite.fences or len(rewrite.sources) > 1 or _is_shortened(survey, rewrite)
    ]
    losses = [loss for hole in survey.damage for loss in hole.losses]
    return LogRepair(rewrites, losses, cut)


def _state(survey: Survey, hole: Hole) -> Fence | None:
    """Make the state anew with which the log begins; None when the hole is elsewhere.

    Raises
    ------
    CorruptLogError
        It cannot be told, or has no room.
    """
    begin = survey.files[0].base if survey.files else 0
    if not begin or hole.stretch.position != begin:
        return None
    state, room = survey.ledger.state_at_begin(), hole.stretch.size
    size = HEADER_SIZE + (len(encode_state(state)) if state is not None else room)
    if state is None or size > room:
        raise CorruptLogError(
            f"{survey.files[0].path}: the log begins here, and how its queues stood there is lost",
            hint="nothing was changed; put the file back from a copy of this folder",
        )
    # What is too short for a fence behind it becomes a part of the entry.
    size = room if room - size < HEADER_SIZE else size
    return Fence(begin, size, state=state)


def _end(survey: Survey) -> tuple[int, int | None]:
    damage = survey.damage
    end = max([survey.end, *(hole.stretch.end for hole in damage)])
    cut = survey.tail.stretch.position if survey.tail is not None else None
    if survey.unfinished_unit is not None:
        cut = survey.unfinished_unit
    return (end if cut is None else cut), cut


def _fences(hole: Hole, state: Fence | None) -> Iterator[Fence]:
    """Cover a hole; what was lost goes into the first fences that have room for it."""
    position, waiting = hole.stretch.position, hole.losses
    if state is not None:
        yield state
        position += state.size
    left = hole.stretch.end - position
    sizes = fence_sizes(left) if left else []
    for number, size in enumerate(sizes):
        held: list[Loss] = []
        while waiting and room_for([*held, waiting[0]]) <= size - HEADER_SIZE:
            held.append(waiting.pop(0))
        if waiting and number == len(sizes) - 1:
            raise CorruptLogError(
                f"{hole.stretch.path}: {size} bytes at position {position} have no room for what "
                f"was lost there",
                hint="nothing was changed; put the file back from a copy of this folder",
            )
        yield Fence(position, size, tuple(held))
        position += size


def _groups(survey: Survey, folder: Path, fences: list[Fence], end: int) -> Iterator[Rewrite]:
    """Put files together that cannot stand alone any more.

    Each segment but the first begins with a STATE entry.  Where that is lost, the segment goes
    on as a part of the one before it.
    """
    lost_begins = {fence.position for fence in fences if fence.state is None}
    group: Rewrite | None = None
    files = survey.files
    for number, file in enumerate(files):
        stop = end if number == len(files) - 1 else files[number + 1].base
        if file.base >= end and group is not None:
            # All of it is cut off: kept aside like the rest.
            group.sources.append((file.path, file.base, file.base))
            continue
        if group is not None and file.base not in lost_begins:
            yield _with_fences(group, fences)
            group = None
        if group is None:
            group = Rewrite(file.path, file.base, stop, [])
        group.sources.append((file.path, file.base, min(stop, file.end)))
        group.end = min(stop, end)
    if group is None and fences:
        group = Rewrite(folder / f"{0:020d}.log", 0, end, [])
    if group is not None:
        yield _with_fences(group, fences)


def _with_fences(group: Rewrite, fences: list[Fence]) -> Rewrite:
    group.fences = [fence for fence in fences if group.base <= fence.position < group.end]
    return group


def _is_shortened(survey: Survey, rewrite: Rewrite) -> bool:
    [(path, _, _)] = rewrite.sources
    [file] = [file for file in survey.files if file.path == path]
    return file.end != rewrite.end


def apply_rewrites(
    rewrites: list[Rewrite],
    aside: Path,
    ops: FileOps,
    progress: Callable[[int], None] = lambda _done: None,
) -> None:
    """Make files anew, each by one rename; the old ones keep a name in a folder."""
    for rewrite in rewrites:
        ops.make_directory(aside)
        for path, _, _ in rewrite.sources:
            keep_aside(path, aside / path.name, ops)
        ops.sync_directory(aside)
        folder = rewrite.target.parent
        ops.make_directory(folder)
        temporary = rewrite.target.with_name(rewrite.target.name + ".repair")
        _write(rewrite, temporary, ops, progress)
        ops.rename(temporary, rewrite.target)
        ops.sync_directory(folder)
        for path, _, _ in rewrite.sources[1:]:
            ops.unlink(path)
        ops.sync_directory(folder)


def keep_aside(path: Path, copy: Path, ops: FileOps) -> None:
    """Give a file a second name where it is kept, or a copy where that cannot be."""
    if copy.exists():
        return
    try:
        ops.link(path, copy)
    except PermissionError:
        # A file system without second names.
        replace_file(ops, copy, ops.read_bytes(path))


def _write(rewrite: Rewrite, path: Path, ops: FileOps, progress: Callable[[int], None]) -> None:
    fd = ops.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        for source, first, last in rewrite.sources:
            _copy(source, first, last, fd, rewrite.base, ops, progress)
        ops.truncate(fd, rewrite.end - rewrite.base)
        for fence in rewrite.fences:
            write_all(ops, fd, [fence.content()], fence.position - rewrite.base)
        ops.fdatasync(fd)
    finally:
        ops.close(fd)


def _copy(
    source: Path,
    first: int,
    last: int,
    fd: int,
    base: int,
    ops: FileOps,
    progress: Callable[[int], None],
) -> None:
    reading = ops.open(source, os.O_RDONLY)
    try:
        for position in range(first, last, _COPY_BYTES):
            size = min(_COPY_BYTES, last - position)
            content = read_all(ops, reading, size, position - first)
            write_all(ops, fd, [content], position - base)
            progress(size)
    finally:
        ops.close(reading)
