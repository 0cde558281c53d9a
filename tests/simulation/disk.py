"""Disks that know what is synced.

Files are real ones, in memory, so that everything reads them as ever.  Beside each stands what
would be left of it after a power cut: bytes that were synced, and any of those that were not.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from headrace.runtime.state import local
from headrace.store.fileops import Buffer, FileOps
from tests.simulation.world import Killed, ViolationError, World, this_thread

if TYPE_CHECKING:
    from headrace.protocol.transactions import CommitRecord, StateSummary
    from headrace.runtime.state.local import LocalCopies, OpenCopies
    from headrace.runtime.state.store import StoreCopy

#: What a call of the system may fail with.
_OPEN_ERRORS = (errno.EMFILE, errno.ENOSPC, errno.EIO)
_WRITE_ERRORS = (errno.ENOSPC, errno.EIO)
#: Files whose bytes may differ from what was written, without a power cut: those of staged parts.
_DAMAGED = ".part"


class _File:
    """What is known of one file: its bytes on the disk, and what was written since."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = bytearray(durable)
        #: Writes that were not synced yet, in order: offset and bytes; None: cut to a length.
        self.pending: list[tuple[int, bytes | None]] = []
        #: Whether a name of it is surely on the disk.
        self.named = False

    def sync(self) -> None:
        for offset, data in self.pending:
            _apply(self.durable, offset, data)
        self.pending.clear()


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class SimulatedFiles(FileOps):
    """File operations of a store on a simulated disk.

    Parameters
    ----------
    world
        Where the disk is.
    root
        Its folder.
    """

    def __init__(self, world: World, root: Path) -> None:
        self._world = world
        self._root = root
        #: Calls of ten thousand that fail.
        self.trouble = 0
        #: So many of the next syncs fail.
        self.failing_syncs = 0
        #: Called when a sync has failed.
        self.on_failed_sync: Callable[[], None] = lambda: None
        self._files: dict[int, _File] = {}
        self._by_descriptor: dict[int, _File] = {}
        #: Changes of names that are not on the disk yet: name and the inode it had before.
        self._names: dict[Path, bytes | None] = {}
        self.calls = 0

    # Trouble

    def _turn(self, what: str, errors: Sequence[int]) -> None:
        world = self._world
        me = this_thread()
        if me is None:
            return
        if me.deaf:
            raise Killed
        self.calls += 1
        world.pause()
        self._fail(what, errors)

    def _fail(self, what: str, errors: Sequence[int], calls: int = 10_000) -> None:
        world, me = self._world, this_thread()
        if me is None or me.process.kind != "broker":
            # Who checks the results sees them in any case.
            return
        if self.trouble and world.chance.randrange(calls) < self.trouble:
            number = world.chance.choice(errors)
            world.tell(f"disk: {what} fails with {errno.errorcode[number]}")
            raise OSError(number, os.strerror(number))

    def _file(self, inode: int) -> _File:
        return self._files.setdefault(inode, _File())

    # Calls

    def open(self, path: Path, flags: int) -> int:
        self._turn(f"open {path.name}", _OPEN_ERRORS)
        is_new = not path.exists()
        if flags == os.O_RDONLY and path.suffix == _DAMAGED:
            self._damage(path)
        fd = super().open(path, flags)
        inode = os.fstat(fd).st_ino
        if is_new:
            # Numbers of files that are gone are given again.
            self._files[inode] = _File()
            self._names.setdefault(path, None)
        file = self._file(inode)
        if flags & os.O_TRUNC:
            file.pending.append((0, None))
        self._by_descriptor[fd] = file
        return fd

    def _damage(self, path: Path) -> None:
        """Have a byte of a file differ from what was written, now and then."""
        chance = self._world.chance
        if self.trouble and path.exists() and chance.randrange(400) < self.trouble:
            self._world.tell(f"disk: a byte of {path.name} differs")
            content = bytearray(path.read_bytes())
            content[chance.randrange(len(content) // 2, len(content))] ^= 1
            with path.open("r+b") as file:
                file.write(content)

    def close(self, fd: int) -> None:
        me = this_thread()
        if me is not None and me.deaf:
            return
        self._by_descriptor.pop(fd, None)
        super().close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._turn("write", _WRITE_ERRORS)
        data = b"".join(buffers)
        if self.trouble and len(data) > 1 and self._world.chance.randrange(1000) < self.trouble:
            data = data[: self._world.chance.randrange(1, len(data))]
        written = os.pwrite(fd, data, offset)
        self._by_descriptor[fd].pending.append((offset, data[:written]))
        return written

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        self._turn("read", (errno.EIO,))
        return super().preadv(fd, buffers, offset)

    def read_bytes(self, path: Path) -> bytes:
        self._turn(f"read {path.name}", (errno.EMFILE, errno.EIO))
        return super().read_bytes(path)

    def map(self, fd: int, size: int) -> memoryview:
        # Nobody else has a turn meanwhile: it is called under a lock that the world does not know.
        self._fail("map", (errno.EMFILE, errno.ENOMEM), 500)
        return super().map(fd, size)

    def fdatasync(self, fd: int) -> None:
        file = self._by_descriptor[fd]
        try:
            self._turn("fdatasync", (errno.EIO,))
            if self.failing_syncs:
                self.failing_syncs -= 1
                self._world.tell("disk: a sync fails")
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        except OSError:
            # Linux takes the pages for clean from now on: they never reach the disk.
            file.pending.clear()
            self.on_failed_sync()
            raise
        file.sync()

    def truncate(self, fd: int, size: int) -> None:
        self._turn("truncate", (errno.EIO,))
        super().truncate(fd, size)
        self._by_descriptor[fd].pending.append((size, None))

    def rename(self, source: Path, target: Path) -> None:
        self._turn(f"rename {target.name}", (errno.EIO,))
        if source.is_dir():
            # Such a name is on the disk at once; what stands below it goes along.
            self._names = {
                target / path.relative_to(source) if path.is_relative_to(source) else path: before
                for path, before in self._names.items()
            }
        else:
            self._note(target)
            self._note(source)
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._turn(f"link {target.name}", (errno.EMFILE, errno.EIO))
        self._note(target)
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._turn(f"unlink {path.name}", (errno.EIO,))
        self._note(path)
        super().unlink(path)

    def _note(self, path: Path) -> None:
        """Note what a name stands for on the disk, before it changes."""
        if path not in self._names:
            self._names[path] = self._on_disk(path) if path.exists() else None

    def _on_disk(self, path: Path) -> bytes:
        file = self._files.get(path.stat().st_ino)
        return path.read_bytes() if file is None else bytes(file.durable)

    def sync_directory(self, path: Path) -> None:
        self._turn(f"sync {path.name}", (errno.EIO,))
        for name in [name for name in self._names if name.parent == path]:
            del self._names[name]

    def make_directory(self, path: Path) -> None:
        self._world.check()
        path.mkdir(parents=True, exist_ok=True)

    def mkdir(self, path: Path) -> None:
        self._turn(f"mkdir {path.name}", (errno.ENOSPC, errno.EIO))
        super().mkdir(path)

    def free_bytes(self, path: Path) -> int:
        del path
        return 1 << 40

    def disk_usage(self, path: Path) -> tuple[int, int]:
        del path
        return 1 << 30, 1 << 40

    # The end of power

    def cut_power(self) -> None:
        """Leave what is synced, and any of what is not."""
        chance = self._world.chance
        contents: dict[Path, bytes | None] = {}
        for path in sorted(each for each in self._root.rglob("*") if each.is_file()):
            file = self._files.get(path.stat().st_ino)
            if path in self._names and chance.random() < 0.5:
                continue
            contents[path] = path.read_bytes() if file is None else self._left(file)
        for path, before in self._names.items():
            if path not in contents:
                contents[path] = before
        folders = [each for each in self._root.rglob("*") if each.is_dir()]
        self.lose()
        for folder in folders:
            (self._root / folder.relative_to(self._root)).mkdir(parents=True, exist_ok=True)
        for path, content in contents.items():
            if content is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                self._files[path.stat().st_ino] = _File(content)

    def lose(self) -> None:
        """Leave nothing: it is another disk now."""
        # Who has the old files mapped goes on seeing them.
        old = self._root.with_name(self._root.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        self._root.rename(old)
        self._root.mkdir()
        self._files.clear()
        self._by_descriptor.clear()
        self._names.clear()

    def _left(self, file: _File) -> bytes:
        content, chance = bytearray(file.durable), self._world.chance
        for offset, data in file.pending:
            fate = chance.randrange(3)
            if fate == 0 or data is None:
                _apply(content, offset, data)
            elif fate == 1 and len(data) > 1:
                # Pages reach the disk one by one, in any order.
                _apply(content, offset, data[: chance.randrange(1, len(data))])
        return bytes(content)


class SimulatedBatch:
    """Changes of a database that are written together."""

    def __init__(self, *, raw_mode: bool) -> None:
        assert raw_mode
        self.changes: list[tuple[bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.changes.append((key, value))

    def delete(self, key: bytes) -> None:
        self.changes.append((key, None))


class SimulatedReadOptions:
    """Bounds of an iteration."""

    stop: bytes | None = None

    def set_iterate_upper_bound(self, stop: bytes) -> None:
        self.stop = stop


#: So many of the last writes a database may not have on the disk: nobody syncs them.
_NOT_SYNCED = 6


class SimulatedDatabase:
    """Stands in for RocksDB: in memory, one writer, all or nothing per write."""

    def __init__(self, databases: SimulatedDatabases, path: Path) -> None:
        self._databases = databases
        self._path = path
        self._entries = databases.entries[path]

    def _begin_write(self) -> None:
        self._databases.world.pause()
        before = self._databases.before.setdefault(self._path, deque(maxlen=_NOT_SYNCED))
        before.append(dict(self._entries))

    def get(self, key: bytes | list[bytes]) -> Any:
        self._databases.world.check()
        if isinstance(key, list):
            return [self._entries.get(one) for one in key]
        return self._entries.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._begin_write()
        self._entries[key] = value

    def write(self, batch: SimulatedBatch) -> None:
        self._begin_write()
        for key, value in batch.changes:
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = value

    def items(
        self, from_key: bytes = b"", read_opt: SimulatedReadOptions | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        stop = None if read_opt is None else read_opt.stop
        for key, value in sorted(self._entries.items()):
            if from_key <= key and (stop is None or key < stop):
                yield key, value

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self._begin_write()
        for key in [key for key in self._entries if begin <= key < end]:
            del self._entries[key]

    def close(self) -> None:
        self._databases.close(self._path)


class SimulatedDatabases:
    """All databases of a world; a folder that was removed holds none."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries: dict[Path, dict[bytes, bytes]] = {}
        #: What each held before its last writes, the oldest first.
        self.before: dict[Path, deque[dict[bytes, bytes]]] = {}
        self._holders: dict[Path, Any] = {}

    def open(self, path: str, *_: object, **__: object) -> SimulatedDatabase:
        """Open a database, or make it; raises as RocksDB does while another process has it."""
        folder, me = Path(path), this_thread()
        assert me is not None
        self.world.pause()
        holder = self._holders.get(folder)
        if holder is not None and not holder.dead:
            raise OSError(f"IO error: lock hold by current process: {path}/LOCK")
        if not folder.exists():
            folder.mkdir(parents=True)
            self.entries[folder] = {}
            self.before.pop(folder, None)
        self._holders[folder] = me.process
        return SimulatedDatabase(self, folder)

    def destroy(self, path: str, *_: object) -> None:
        """Remove a database; raises as RocksDB does while a process has it."""
        folder = Path(path)
        self.world.pause()
        holder = self._holders.get(folder)
        if holder is not None and not holder.dead:
            raise OSError(f"IO error: lock hold by current process: {path}/LOCK")
        self.entries.pop(folder, None)
        shutil.rmtree(folder, ignore_errors=True)

    def owner(self, lock: Path) -> int | None:
        """Give the process that has a database open."""
        holder = self._holders.get(lock.parent)
        return None if holder is None or holder.dead else holder.pid

    def go_back(self, folder: Path) -> None:
        """Have each database below a folder hold what it held at most some writes ago."""
        for path in sorted(self.entries):
            if folder in path.parents and (before := self.before.pop(path, None)):
                self.entries[path] = self.world.chance.choice([*before, self.entries[path]])

    def lose(self, folder: Path) -> None:
        """Remove all that is below a folder."""
        for path in [path for path in self.entries if folder in path.parents]:
            del self.entries[path]
            self.before.pop(path, None)
        shutil.rmtree(folder, ignore_errors=True)

    def close(self, path: Path) -> None:
        """Let others open it."""
        self.world.check()
        self._holders.pop(path, None)


class CopyWatch:
    """Looks at each copy of state that a task is given: it holds what its commit says.

    Results seldom show that one does not: sums find it some batches later, and all is read anew.

    Parameters
    ----------
    commits
        Gives the commits of the job.
    """

    def __init__(self, commits: Callable[[], Sequence[CommitRecord]]) -> None:
        self.failure: ViolationError | None = None
        self._commits = commits

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Look at all that are opened."""
        open_copy, usable = local.LocalCopies.open, local.LocalCopies._usable_mark

        def opened(copies: LocalCopies, *given: Any) -> StoreCopy:
            copy = open_copy(copies, *given)
            if copy._database is not None and this_thread() is not None:
                self._look_at_content(copy._database, given[2])
            return copy

        def used(copies: LocalCopies, *given: Any) -> Any:
            mark = usable(copies, *given)
            if mark is not None and this_thread() is not None:
                self._look_at_mark(mark, given[1])
            return mark

        open_held = local.OpenCopies.open

        def held(copies: OpenCopies, *given: Any) -> StoreCopy:
            copy = open_held(copies, *given)
            if isinstance(copy.base, local._RocksBase) and this_thread() is not None:
                self._look_at_content(copy.base._database, given[2])
            return copy

        with (
            patch.object(local.LocalCopies, "open", opened),
            patch.object(local.OpenCopies, "open", held),
            patch.object(local.LocalCopies, "_usable_mark", used),
        ):
            yield

    def _look_at_content(self, database: Any, of: StateSummary) -> None:
        if local._content(database) != (of.count, of.checksum):
            self._fail(f"a copy of {of.store} is not that of epoch {of.epoch}, batch {of.batch}")

    def _look_at_mark(self, mark: Any, of: StateSummary) -> None:
        for commit in self._commits():
            if commit.batch == mark.batch and commit.epoch != mark.epoch:
                self._fail(f"a copy of {of.store} is of {mark}, which does not count")

    def _fail(self, wrong: str) -> None:
        self.failure = self.failure or ViolationError(wrong)
