"""Repairing compaction logs: damaged files are made anew from what is intact.

A record that is lost there is taken from the commit log, when that still has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec
import numpy as np

from headrace.errors import CorruptLogError
from headrace.protocol.columns import Records, record_starts
from headrace.store.compaction.data_writer import DataWriter
from headrace.store.compaction.entry_reader import next_intact, stretches
from headrace.store.compaction.inspection import inspect_folder, synced_size
from headrace.store.compaction.manifest import FileMeta, Manifest, publish, read_manifest
from headrace.store.compaction.naming import data_path, index_path, make_name
from headrace.store.compaction.recovery import paths_of, remove_files
from headrace.store.compaction.row_writer import ROW_HEADER_SIZE
from headrace.store.compaction.units import INDEX, IndexRows, describe
from headrace.store.damage.findings import Finding
from headrace.store.damage.log_repair import keep_aside
from headrace.store.fences import Loss

if TYPE_CHECKING:
    from headrace.store.compaction.digests import KeyDigest
    from headrace.store.compaction.reports import Damage
    from headrace.store.fileops import FileOps

__all__ = ["QueueRepair", "check_compaction_logs", "find_damaged_queues", "repair_queue"]

Fetch = Callable[[int, int], bytes | None]
"""Gives the record at a position of the commit log if it is intact and has a queue offset."""

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
        """Whether it is known which files belong to the log."""
        try:
            return read_manifest(self.folder, ops) is not None
        except CorruptLogError:
            return False

    @property
    def losses(self) -> list[Loss]:
        """The lost offsets, neighbours together."""
        losses: list[Loss] = []
        for offset in self.lost:
            if losses and losses[-1].end == offset:
                losses[-1] = Loss(*self.key, losses[-1].first, offset + 1)
            else:
                losses.append(Loss(*self.key, offset, offset + 1))
        return losses


def find_damaged_queues(store: Path, ops: FileOps) -> list[QueueRepair]:
    """Read all compaction logs of a store, and name those that are damaged."""
    folders = sorted(path for path in (store / "compaction").glob("*/*-*") if path.is_dir())
    found = [QueueRepair(folder, _steady_damage(folder, ops)) for folder in folders]
    return [queue for queue in found if queue.damage]


def _steady_damage(folder: Path, ops: FileOps) -> list[Damage]:
    """Inspect a folder again when a broker replaced its files meanwhile."""
    damage: list[Damage] = []
    for _ in range(_ATTEMPTS):
        before = _manifest_bytes(folder, ops)
        try:
            damage = inspect_folder(folder, ops)
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
    """Say what is damaged in the compaction logs of a store."""
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
    remove_files([path for meta in old for path in paths_of(folder, meta)], ops)


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
        fresh = FileMeta(make_name(meta.first, self.generation))
        folder = self.queue.folder
        writer = DataWriter(folder, fresh, self.digest.mark, self.ops, is_new=False)
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
        path = data_path(self.queue.folder, manifest.active)
        first = int(manifest.active.partition("-")[0])
        found = path.stat().st_size if path.exists() else 0
        size = max(found, synced_size(self.queue.folder, manifest.active, self.ops))
        whole = FileMeta(manifest.active, first=first, size=size)
        made = self.remade(whole)
        if made.count:
            files = (*files, made)
        self.generation += 1
        end = max([manifest.log_end, *(meta.last + 1 for meta in files)])
        active = make_name(end, self.generation)
        return files, msgspec.structs.replace(manifest, active=active, log_end=end)

    def published(self, files: tuple[FileMeta, ...], manifest: Manifest) -> Manifest:
        """Give the new manifest.

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
        path, end = data_path(self.queue.folder, meta.name), 0
        size = min(path.stat().st_size, meta.size) if path.exists() else 0
        while end < meta.size:
            if end < size:
                for stretch in stretches(path, end, size, self.ops):
                    for entry in stretch.entries:
                        yield stretch.payload(entry)
                    end = stretch.end
            if end < meta.size:
                begin = end
                found = next_intact(path, end + 1, size, self.ops) if end < size else None
                end = meta.size if found is None else found
                yield from self._restored(meta, begin, end)

    def _restored(self, meta: FileMeta, begin: int, end: int) -> Iterator[memoryview]:
        """Give the records of damaged bytes as the commit log has them."""
        index = self._index(meta)
        for row in index[(index["at"] >= begin) & (index["at"] < end)]:
            offset, position = int(row["offset"]), int(row["log_position"])
            record = self.fetch(position, offset)
            if record is not None:
                self.queue.restored += 1
                yield memoryview(bytearray(record))
            elif 0 <= offset - meta.first <= max(meta.last - meta.first, end - begin):
                self.queue.lost.append(offset)

    def _index(self, meta: FileMeta) -> IndexRows:
        """Read index rows that may be damaged, too: what they lead to is checked."""
        try:
            content = self.ops.read_bytes(index_path(self.queue.folder, meta))[ROW_HEADER_SIZE:]
        except OSError:
            content = b""
        return np.frombuffer(content, INDEX, len(content) // INDEX.itemsize)
