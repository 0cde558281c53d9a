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
from urllib.parse import unquote

import msgspec
import numpy as np

from headrace.errors import CorruptLogError
from headrace.protocol.layout import record_starts
from headrace.protocol.records import Records
from headrace.store import entries
from headrace.store.compaction import data_file, recovery
from headrace.store.compaction.manifest import Damage, FileMeta, Manifest, publish, read_manifest
from headrace.store.compaction.offset_map import KeyDigest, describe
from headrace.store.damage.inspection import Finding
from headrace.store.fileops import FileOps, read_all, replace_file, write_all

if TYPE_CHECKING:
    from headrace.store.damage.ledger import Hole, Survey


_COPY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Fence:
    """A VOID or STATE entry to be written."""

    position: int
    #: Its bytes, header included.
    size: int
    losses: tuple[entries.Loss, ...] = ()
    #: The state with which a log begins, when that is what stands here.
    state: entries.LogState | None = None

    def content(self) -> bytes:
        """Make the bytes of the entry."""
        position, size = self.position, self.size - entries.HEADER_SIZE
        if self.state is not None:
            kind, payload = entries.EntryKind.STATE, entries.encode_state_of_size(self.state, size)
        else:
            kind, payload = entries.EntryKind.VOID, entries.pack_losses(self.losses, size)
        return (
            entries.pack_header(kind, position, payload, synced=position, unit=entries.NO_UNIT)
            + payload
        )


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
    losses: list[entries.Loss]
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
    size = entries.HEADER_SIZE + (len(entries.encode_state(state)) if state is not None else room)
    if state is None or size > room:
        raise CorruptLogError(
            f"{survey.files[0].path}: the log begins here, and how its queues stood there is lost",
            hint="nothing was changed; put the file back from a copy of this folder",
        )
    # What is too short for a fence behind it becomes a part of the entry.
    size = room if room - size < entries.HEADER_SIZE else size
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
    sizes = entries.fence_sizes(left) if left else []
    for number, size in enumerate(sizes):
        held: list[entries.Loss] = []
        while waiting and entries.room_for([*held, waiting[0]]) <= size - entries.HEADER_SIZE:
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
    """Link a file under a second name where it is kept, or a copy where that cannot be."""
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


# Repairing compaction logs: damaged files are made anew from what is intact.
#
# A record that is lost there is taken from the commit log, when that still has it.

Fetch = Callable[[int, int], bytes | None]
"""Function that returns the record at a position of the commit log, if it is intact and fits."""

_ATTEMPTS = 5


@dataclass(slots=True)
class QueueRepair:
    """A compaction log that is damaged, and what became of it."""

    folder: Path
    damage: list[Damage]
    #: Offsets that are lost, and how many records came from the commit log.
    lost: list[int] = field(default_factory=list)
    restored: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """Topic and queue id, from the folder's name."""
        return unquote(self.folder.parent.name), int(self.folder.name.partition("-")[0])

    def has_manifest(self, ops: FileOps) -> bool:
        """Return whether it is known which files belong to the log."""
        try:
            return read_manifest(self.folder, ops) is not None
        except CorruptLogError:
            return False

    @property
    def losses(self) -> list[entries.Loss]:
        """The lost offsets, neighbours together."""
        losses: list[entries.Loss] = []
        for offset in self.lost:
            if losses and losses[-1].end == offset:
                losses[-1] = entries.Loss(*self.key, losses[-1].first, offset + 1)
            else:
                losses.append(entries.Loss(*self.key, offset, offset + 1))
        return losses


def find_damaged_queues(store: Path, ops: FileOps) -> list[QueueRepair]:
    """Read all compaction logs of a store, and return those that are damaged."""
    folders = sorted(path for path in (store / "compaction").glob("*/*-*") if path.is_dir())
    found = [QueueRepair(folder, _steady_damage(folder, ops)) for folder in folders]
    return [queue for queue in found if queue.damage]


def _steady_damage(folder: Path, ops: FileOps) -> list[Damage]:
    """Inspect a folder again when a broker replaced its files meanwhile."""
    damage: list[Damage] = []
    for _ in range(_ATTEMPTS):
        before = _manifest_bytes(folder, ops)
        try:
            damage = recovery.inspect_folder(folder, ops)
        except FileNotFoundError:
            continue
        if not damage or _manifest_bytes(folder, ops) == before:
            return damage
    return damage


def _manifest_bytes(folder: Path, ops: FileOps) -> bytes:
    try:
        return ops.read_bytes(folder / "MANIFEST")
    except OSError:
        return b""


def check_compaction_logs(store: Path, ops: FileOps) -> Iterator[Finding]:
    """Yield what is damaged in the compaction logs of a store."""
    for queue in find_damaged_queues(store, ops):
        topic, queue_id = queue.key
        for damage in queue.damage:
            derived = damage.path.suffix != ".data" and damage.path.name != "MANIFEST"
            means = (
                "it is made again from the data; nothing is lost"
                if derived
                else "reads of it fail, and the queue is not compacted; a repair keeps the rest"
            )
            yield Finding(
                "damage",
                damage.path,
                f"{damage.reason} (compaction log of topic {topic!r}, queue {queue_id})",
                means,
                offset=damage.offset,
            )


def repair_queue(
    queue: QueueRepair,
    aside: Path,
    ops: FileOps,
    make_digest: Callable[[str], KeyDigest],
    fetch: Fetch,
) -> None:
    """Make the damaged files of one log anew, and publish them; the old ones are kept.

    Raises
    ------
    CorruptLogError
        It is not known which files belong to the log; nothing was changed.
    """
    folder = queue.folder
    manifest = read_manifest(folder, ops)
    if manifest is None:
        return
    kept_aside = aside / folder.parent.name / folder.name
    ops.make_directory(kept_aside)
    for path in sorted(folder.iterdir()):
        keep_aside(path, kept_aside / path.name, ops)
    ops.sync_directory(kept_aside)
    damaged = {damage.path.name.partition(".")[0] for damage in queue.damage}
    rebuilding = _Rebuilding(queue, manifest, make_digest(manifest.digest), ops, fetch)
    files = tuple(
        made
        for meta in manifest.files
        if (made := rebuilding.remade(meta) if meta.name in damaged else meta).count
    )
    if manifest.active in damaged:
        files, manifest = rebuilding.retire_active(files, manifest)
    error = publish(folder, rebuilding.published(files, manifest), ops)
    if error is not None:
        raise error
    old = [meta for meta in manifest.files if meta not in files]
    recovery.remove_files([path for meta in old for path in recovery.paths_of(folder, meta)], ops)


@dataclass(slots=True)
class _Rebuilding:
    queue: QueueRepair
    manifest: Manifest
    digest: KeyDigest
    ops: FileOps
    fetch: Fetch
    generation: int = 0

    def __post_init__(self) -> None:
        numbers = [
            int(path.name.partition(".")[0].partition("-")[2] or 0)
            for path in self.queue.folder.glob("*-*.data")
        ]
        self.generation = max([self.manifest.generation, *numbers])

    def remade(self, meta: FileMeta) -> FileMeta:
        """Write the intact records of a file to a new one, with those that can be restored."""
        self.generation += 1
        fresh = FileMeta(data_file.make_name(meta.first, self.generation))
        folder = self.queue.folder
        writer = data_file.DataWriter(folder, fresh, self.digest.mark, self.ops, is_new=False)
        try:
            for payload in self._payloads(meta):
                rows = describe(Records(payload, record_starts(payload)), self.digest)
                writer.write(payload, rows)
            writer.sync(rows=True)
        finally:
            writer.release()
        return writer.meta

    def retire_active(
        self, files: tuple[FileMeta, ...], manifest: Manifest
    ) -> tuple[tuple[FileMeta, ...], Manifest]:
        """Make the damaged active file a closed one, and name a new one."""
        path = data_file.data_path(self.queue.folder, manifest.active)
        first = int(manifest.active.partition("-")[0])
        found = path.stat().st_size if path.exists() else 0
        size = max(found, recovery.synced_size(self.queue.folder, manifest.active, self.ops))
        whole = FileMeta(manifest.active, first=first, size=size)
        made = self.remade(whole)
        if made.count:
            files = (*files, made)
        self.generation += 1
        end = max([manifest.log_end, *(meta.last + 1 for meta in files)])
        active = data_file.make_name(end, self.generation)
        return files, msgspec.structs.replace(manifest, active=active, log_end=end)

    def published(self, files: tuple[FileMeta, ...], manifest: Manifest) -> Manifest:
        """Return the new manifest.

        What is lost at the very end is appended again, if the commit log has it: the end moves
        back to what is there.
        """
        held = max((meta.last + 1 for meta in files), default=0)
        lost = [offset for offset in self.queue.lost if offset >= held]
        end = held if lost and lost[-1] + 1 >= manifest.log_end else manifest.log_end
        return msgspec.structs.replace(
            manifest,
            files=files,
            log_end=end,
            clean_until=min(manifest.clean_until, end),
            generation=self.generation,
        )

    def _payloads(self, meta: FileMeta) -> Iterator[memoryview]:
        path, end = data_file.data_path(self.queue.folder, meta.name), 0
        size = min(path.stat().st_size, meta.size) if path.exists() else 0
        while end < meta.size:
            if end < size:
                for stretch in recovery.stretches(path, end, size, self.ops):
                    for entry in stretch.entries:
                        yield stretch.payload(entry)
                    end = stretch.end
            if end < meta.size:
                begin = end
                found = recovery.next_intact(path, end + 1, size, self.ops) if end < size else None
                end = meta.size if found is None else found
                yield from self._restored(meta, begin, end)

    def _restored(self, meta: FileMeta, begin: int, end: int) -> Iterator[memoryview]:
        """Yield the records of damaged bytes as the commit log has them."""
        index = self._index(meta)
        for row in index[(index["at"] >= begin) & (index["at"] < end)]:
            offset, position = int(row["offset"]), int(row["log_position"])
            record = self.fetch(position, offset)
            if record is not None:
                self.queue.restored += 1
                yield memoryview(bytearray(record))
            elif 0 <= offset - meta.first <= max(meta.last - meta.first, end - begin):
                self.queue.lost.append(offset)

    def _index(self, meta: FileMeta) -> data_file.IndexRows:
        """Read index rows that may be damaged, too: what they lead to is checked."""
        try:
            content = self.ops.read_bytes(data_file.index_path(self.queue.folder, meta))[
                data_file.ROW_HEADER_SIZE :
            ]
        except OSError:
            content = b""
        return np.frombuffer(content, data_file.INDEX, len(content) // data_file.INDEX.itemsize)
