"""A disk whose power can be cut: what was not synced may be there, or not, or in part."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.store import FileOps
from headrace.store.fileops import Buffer

__all__ = ["CutDuringSync", "Disk"]

SECTOR = 512


@dataclass(eq=False)
class Inode:
    """A file: what is surely on disk, and the writes that may be."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)

    def sync(self) -> None:
        self.durable = self.replayed(None)
        self.pending = []

    def replayed(self, chance: random.Random | None) -> bytearray:
        """Apply the pending writes: all of them, or sector by sector as chance has it."""
        content = bytearray(self.durable)
        for change in self.pending:
            if isinstance(change, int):
                if chance is None or chance.random() < 0.5:
                    del content[change:]
                continue
            offset, written = change
            verdict = "whole" if chance is None else chance.choice(["whole", "none", "sectors"])
            at = offset
            while at < offset + len(written):
                end = min((at // SECTOR + 1) * SECTOR, offset + len(written))
                if verdict == "whole" or (
                    verdict == "sectors" and chance is not None and chance.random() < 0.5
                ):
                    content.extend(bytes(max(end - len(content), 0)))
                    content[at:end] = written[at - offset : end - offset]
                at = end
        return content


class Disk(FileOps):
    """Does what is asked, and models what a power cut would leave."""

    def __init__(self) -> None:
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        #: Changes of names since their folder was synced, in order.
        self.renames: list[tuple[Path, Inode | None]] = []
        self.open_files: dict[int, Inode] = {}
        #: Whether syncs of files fail: what they should have written is then written by no other.
        self.fails = False
        #: The writer and the checkpointer work at the same time.
        self.lock = threading.RLock()

    def _name(self, path: Path, inode: Inode | None) -> None:
        self.renames.append((path, inode))
        if inode is None:
            self.names.pop(path, None)
        else:
            self.names[path] = inode

    def open(self, path: Path, flags: int) -> int:
        with self.lock:
            fd = super().open(path, flags)
            if path not in self.names:
                self._name(path, Inode())
            if flags & os.O_TRUNC:
                self.names[path].pending.append(0)
            self.open_files[fd] = self.names[path]
            return fd

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        with self.lock:
            self.open_files[fd].pending.append((offset, b"".join(buffers)))
            return super().pwritev(fd, buffers, offset)

    def truncate(self, fd: int, size: int) -> None:
        with self.lock:
            self.open_files[fd].pending.append(size)
            super().truncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        with self.lock:
            if self.fails:
                self.open_files[fd].pending = []
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self.open_files[fd].sync()

    def rename(self, source: Path, target: Path) -> None:
        with self.lock:
            super().rename(source, target)
            self._name(target, self.names[source])
            self._name(source, None)

    def unlink(self, path: Path) -> None:
        with self.lock:
            super().unlink(path)
            self._name(path, None)

    def remove_tree(self, path: Path) -> None:
        with self.lock:
            for name in [name for name in self.names if path in name.parents]:
                self._name(name, None)
            super().remove_tree(path)

    def sync_directory(self, path: Path) -> None:
        with self.lock:
            rest = []
            for name, inode in self.renames:
                if name.parent == path:
                    _apply(self.durable_names, name, inode)
                else:
                    rest.append((name, inode))
            self.renames = rest

    def cut_power(self, root: Path, target: Path, chance: random.Random) -> None:
        """Make the folder that the machine finds when it comes back."""
        names = dict(self.durable_names)
        kept = chance.randint(0, len(self.renames))
        for name, inode in self.renames[:kept]:
            _apply(names, name, inode)
        for name, inode in names.items():
            file = target / name.relative_to(root)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(inode.replayed(chance))


def _apply(names: dict[Path, Inode], name: Path, inode: Inode | None) -> None:
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode


class CutDuringSync(Disk):
    """Cuts the power at the N-th sync of a file or a folder, before it has done anything."""

    def __init__(self, root: Path, target: Path, at: int, chance: random.Random) -> None:
        super().__init__()
        self.root, self.target, self.chance = root, target, chance
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.cut_power(self.root, self.target, self.chance)

    def fdatasync(self, fd: int) -> None:
        with self.lock:
            self._count()
            super().fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        with self.lock:
            self._count()
            super().sync_directory(path)
