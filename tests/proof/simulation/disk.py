"""Stands in for RocksDB: databases in memory, one writer each, all or nothing per write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import StateLockedError


class SimulatedBatch:
    """Changes that are written together."""

    def __init__(self, *, raw_mode: bool) -> None:
        assert raw_mode
        self.changes: list[tuple[bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.changes.append((key, value))

    def delete(self, key: bytes) -> None:
        self.changes.append((key, None))


class SimulatedDatabase:
    """An open database."""

    def __init__(self, disk: SimulatedDisk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._entries = disk.entries[path]

    def get(self, key: bytes | list[bytes]) -> Any:
        if isinstance(key, list):
            return [self._entries.get(one) for one in key]
        return self._entries.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._entries[key] = value

    def write(self, batch: SimulatedBatch) -> None:
        for key, value in batch.changes:
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = value

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self._entries.items())

    def delete_range(self, begin: bytes, end: bytes) -> None:
        for key in [key for key in self._entries if begin <= key < end]:
            del self._entries[key]

    def close(self) -> None:
        self._disk.locked.discard(self._path)


class SimulatedDisk:
    """All databases of a world; a folder that was removed holds none."""

    def __init__(self) -> None:
        self.entries: dict[Path, dict[bytes, bytes]] = {}
        self.locked: set[Path] = set()

    def open(self, path: Path) -> SimulatedDatabase:
        if path in self.locked:
            raise StateLockedError(f"another task has {path}")
        if not path.exists():
            path.mkdir(parents=True)
            self.entries[path] = {}
        self.locked.add(path)
        return SimulatedDatabase(self, path)

    def unlock(self, folder: Path) -> None:
        """Let go of what a process below a folder had open, as the system does when it dies."""
        self.locked = {path for path in self.locked if folder not in path.parents}
