"""Records to store, and looks at what a store holds."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from headrace.protocol.records import encode_records
from headrace.protocol.transactions import StagedSection, encode_sections
from headrace.store import FileOps, MessageStore, QueueAppend, StoreSettings
from headrace.store.fileops import Buffer

#: Where the body's length stands in a record with IPv4 hosts.
_BODY_SIZE_AT = 84


def append_of(
    topic: str, queue_id: int, bodies: Iterable[bytes], properties: bytes | None = None
) -> QueueAppend:
    """Make an append of one record per body."""
    return QueueAppend(
        topic, queue_id, encode_records(topic, queue_id, list(bodies), properties, 0)
    )


def section_of(topic: str, queue_id: int, bodies: Sequence[bytes]) -> StagedSection:
    """Make a staged section of one record per body."""
    records = append_of(topic, queue_id, bodies).records
    return StagedSection(topic, queue_id, len(bodies), bytes(records.data))


def chunk_of(*sections: StagedSection) -> bytes:
    """Make the body of a stage request."""
    return encode_sections(sections)


def settings(**changes: Any) -> StoreSettings:
    """Settings that no disk is too small for."""
    return StoreSettings(**({"min_free_space": 0} | changes))


def split(slices: Iterable[Buffer]) -> list[bytes]:
    """Split what a read gave into records."""
    block = b"".join(slices)
    records = []
    at = 0
    while at < len(block):
        (size,) = struct.unpack_from(">i", block, at)
        records.append(block[at : at + size])
        at += size
    return records


def body_of(record: bytes) -> bytes:
    """Give the body of a record."""
    (size,) = struct.unpack_from(">i", record, _BODY_SIZE_AT)
    return record[_BODY_SIZE_AT + 4 : _BODY_SIZE_AT + 4 + size]


def all_records(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Read a queue from its first offset to its end, checking that offsets do not jump."""
    records: list[bytes] = []
    offset = store.bounds(topic, queue_id).min_offset
    while (result := store.read(topic, queue_id, offset, 7, 1 << 30)).count:
        found = split(result.slices)
        assert len(found) == result.count
        assert [struct.unpack_from(">q", each, 20)[0] for each in found] == list(
            range(offset, result.next_offset)
        )
        records += found
        offset = result.next_offset
    assert offset == store.bounds(topic, queue_id).max_offset
    return records


def bodies(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Read the bodies of a whole queue."""
    return [body_of(record) for record in all_records(store, topic, queue_id)]


def contents(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    """Read every record of every queue."""
    return {key: all_records(store, *key) for key in store.queues()}


def log_files(path: Path) -> list[Path]:
    """Name the segments of a store, oldest first."""
    return sorted((path / "log").glob("*.log"))


def log_bytes(path: Path) -> bytes:
    """Read the whole log."""
    return b"".join(each.read_bytes() for each in log_files(path))


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store as a crash would leave it."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


class UnsyncedOps(FileOps):
    """File operations that leave syncing out: for tests that only copy and cut files."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class FaultyOps(FileOps):
    """File operations of which a test lets some fail.

    ``plan`` is asked before each operation with its name and the number of such calls so far
    (from 1); it gives an errno to fail with, or a negative number of bytes to write short by.
    """

    def __init__(self) -> None:
        self.plan: Callable[[str, int], int] = lambda name, number: 0
        self.calls: Counter[str] = Counter()

    def _ask(self, name: str) -> int:
        self.calls[name] += 1
        verdict = self.plan(name, self.calls[name])
        if verdict > 0:
            raise OSError(verdict, os.strerror(verdict))
        return -verdict

    def open(self, path: Path, flags: int) -> int:
        self._ask("open")
        return super().open(path, flags)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        try:
            less = self._ask("write")
        except OSError as error:
            if error.errno == errno.ENOSPC:
                # A disk that fills up takes a part of what it is given.
                whole = b"".join(buffers)
                super().pwritev(fd, [whole[: len(whole) // 2]], offset)
            raise
        if less:
            whole = b"".join(buffers)
            return super().pwritev(fd, [whole[: max(len(whole) - less, 1)]], offset)
        return super().pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        self._ask("sync")
        super().fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self._ask("truncate")
        super().truncate(fd, size)

    def rename(self, source: Path, target: Path) -> None:
        self._ask("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._ask("unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._ask("sync_directory")
        super().sync_directory(path)
