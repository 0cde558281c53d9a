"""File operations of the store, in one object so that tests can make any of them fail."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import StoreError, StoreFullError

Buffer = bytes | bytearray | memoryview

#: Linux takes at most this many buffers in one call.
_MAX_BUFFERS = 1024
_REWRITE_BYTES = 8 * 1024 * 1024

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class FileOps:
    """The operating system's file operations, each a thin call."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file; new files are readable by their owner only."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write buffers at an offset; may write less than asked."""
        return os.pwritev(fd, buffers, offset)

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        """Read into buffers from an offset; may read less than asked, 0 is the end."""
        return os.preadv(fd, buffers, offset)

    def read_bytes(self, path: Path) -> bytes:
        """Read a whole file."""
        return path.read_bytes()

    def map(self, fd: int, size: int) -> memoryview:
        """Show a file's first bytes as memory, which may be held after the file was closed."""
        return memoryview(mmap.mmap(fd, size, access=mmap.ACCESS_READ))

    def fdatasync(self, fd: int) -> None:
        """Put a file's bytes and its length on the disk."""
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file to a size."""
        os.ftruncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, replacing what has it."""
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        """Link a file under a second name."""
        target.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        """Put a directory's entries on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def mkdir(self, path: Path) -> None:
        """Make one directory, for its owner only."""
        path.mkdir(0o700)

    def make_directory(self, path: Path) -> None:
        """Make a directory and its parents; each new name is on the disk on return."""
        if path.is_dir():
            return
        self.make_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            self.mkdir(path)
        self.sync_directory(path.parent)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all that is in it; what cannot be removed stays."""
        shutil.rmtree(path, ignore_errors=True)

    def disk_usage(self, path: Path) -> tuple[int, int]:
        """Return the used bytes of a path's disk, and those plus what may still be written."""
        status = os.statvfs(path)
        used = (status.f_blocks - status.f_bfree) * status.f_frsize
        return used, used + status.f_bavail * status.f_frsize

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that an ordinary user may still write to the disk of a path."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def write_all(ops: FileOps, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Write every byte of the buffers at an offset, however short the single writes are."""
    for first in range(0, len(buffers), _MAX_BUFFERS):
        batch = buffers[first : first + _MAX_BUFFERS]
        size = sum(map(len, batch))
        written = ops.pwritev(fd, batch, offset)
        if written < size:
            _write_rest(ops, fd, memoryview(b"".join(batch))[written:], offset + written)
        offset += size


def _write_rest(ops: FileOps, fd: int, rest: memoryview, offset: int) -> None:
    while rest:
        written = ops.pwritev(fd, [rest], offset)
        if written <= 0:
            raise OSError(errno.EIO, "the disk took no byte of a write")
        rest = rest[written:]
        offset += written


def read_all(ops: FileOps, fd: int, size: int, offset: int) -> bytearray:
    """Read bytes from an offset, however short the single reads are; fewer only at the end."""
    content = bytearray(size)
    view = memoryview(content)
    filled = 0
    while filled < size:
        got = ops.preadv(fd, [view[filled:]], offset + filled)
        if got == 0:
            view.release()
            del content[filled:]
            break
        filled += got
    return content


def rewrite(ops: FileOps, fd: int, begin: int, end: int) -> None:
    """Write a stretch of a file again, as it reads, and put the file on the disk.

    After a sync that failed the system keeps what was written, hands it to whoever reads, and
    takes it for written: no later sync puts it on the disk.  What recovery finds behind the last
    point that is known to be there counts only after this.
    """
    for at in range(begin, end, _REWRITE_BYTES):
        write_all(ops, fd, [read_all(ops, fd, min(_REWRITE_BYTES, end - at), at)], at)
    ops.fdatasync(fd)


def require_space(ops: FileOps, folder: Path, size: int, reserve: int) -> None:
    """Raise as the system would when a write would leave less than a reserve free."""
    if ops.free_bytes(folder) - size < reserve:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def write_error(ops: FileOps, path: Path, error: OSError) -> StoreError:
    """Return the error of a failed write: the disk is full, which may pass, or it is broken.

    Neither ends the log by itself: what was written in part is cut off again.  A sync that fails
    does, see :meth:`CommitLog.sync`.
    """
    reason = error.strerror or str(error)
    if error.errno not in _DISK_FULL:
        return StoreError(
            f"could not write to {path}: {reason}",
            hint="check the disk: nothing of this request was kept, what was answered before is",
        )
    try:
        free = f"{ops.free_bytes(path.parent)} bytes free"
    except OSError:
        free = "free space unknown"
    return StoreFullError(
        f"no space to write to {path} ({reason}; {free})",
        hint="make space on this disk: nothing of this request was kept, reads go on",
    )


def read_error(path: Path, error: OSError) -> StoreError:
    """Return the error of a failed read: nothing is known of the bytes, so nothing is concluded."""
    return StoreError(
        f"could not read {path}: {error.strerror or error}",
        hint="check the disk; nothing was changed, and what reads without an error stays readable",
    )


def replace_file(ops: FileOps, path: Path, content: bytes) -> None:
    """Replace a file's content so that a crash leaves the old or the new one, never a mixture."""
    temporary = path.with_name(path.name + ".tmp")
    fd = ops.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(ops, fd, [content], 0)
        ops.fdatasync(fd)
    finally:
        ops.close(fd)
    ops.rename(temporary, path)
    ops.sync_directory(path.parent)
