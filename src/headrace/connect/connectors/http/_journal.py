"""Requests that were answered before they are committed, kept on disk until they are."""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import msgspec

from headrace.connect.connectors.durable import sync_folder
from headrace.connect.connectors.http._inbox import Arrival
from headrace.errors import StoreLockedError
from headrace.private import owners_folder

__all__ = ["Journal"]

_HEAD = struct.Struct(">II")
_SEGMENT = 16 << 20
_ENDING = ".journal"

logger = logging.getLogger(__name__)


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    last: int
    values: list[Any]
    key: str | None
    headers: list[tuple[str, str]]
    name: str | None


class Journal:
    """Files of requests in the order of their numbers.

    A file whose requests are all committed is removed.

    Parameters
    ----------
    folder
        Where the files are; nobody else may use it.
    committed
        Number of the last record that is committed.
    """

    def __init__(self, folder: Path, committed: int) -> None:
        owners_folder(folder)
        self._folder = folder
        self._guard = (folder / ".lock").open("ab")
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._guard.close()
            message = f"The journal {folder} is used by another process."
            hint = "Give each connector a journal.directory of its own."
            raise StoreLockedError(message, hint=hint) from None
        self._lock = Lock()
        #: Files that are not removed yet, each with the number of its last record.
        self._files: dict[Path, int] = {}
        #: Requests that are not committed.
        self.recovered = [one for one in self._read() if one.last > committed]
        #: Number of the last record that was ever taken.
        self.last = max(committed, *self._files.values(), 0)
        self._file: BinaryIO | None = None
        self._path = folder
        self.trim(committed)

    def append(self, arrivals: Sequence[Arrival]) -> None:
        """Write requests; they are on disk when this returns."""
        with self._lock:
            file = self._opened(arrivals[0])
            file.write(b"".join(map(_framed, arrivals)))
            file.flush()
            os.fsync(file.fileno())
            self._files[self._path] = self.last = arrivals[-1].last

    def trim(self, committed: int) -> None:
        """Remove files of which everything is committed."""
        with self._lock:
            for path in [path for path, last in self._files.items() if last <= committed]:
                if self._file is not None and path == self._path:
                    self._file.close()
                    self._file = None
                del self._files[path]
                path.unlink()

    def close(self) -> None:
        """Let go of the files."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
            self._guard.close()

    def _opened(self, first: Arrival) -> BinaryIO:
        if self._file is not None and self._file.tell() >= _SEGMENT:
            self._file.close()
            self._file = None
        if self._file is None:
            self._path = self._folder / f"{first.last:019d}{_ENDING}"
            self._file = self._path.open("wb")
            sync_folder(self._folder)
        return self._file

    def _read(self) -> Iterator[Arrival]:
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            self._files[path] = 0
            for entry in _entries(path):
                self._files[path] = entry.last
                yield Arrival(
                    values=entry.values,
                    key=entry.key,
                    headers=tuple(entry.headers),
                    name=entry.name,
                    last=entry.last,
                    committed=True,
                )


def _framed(arrival: Arrival) -> bytes:
    entry = _Entry(
        arrival.last, list(arrival.values), arrival.key, list(arrival.headers), arrival.name
    )
    body = msgspec.msgpack.encode(entry)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _entries(path: Path) -> Iterator[_Entry]:
    content = path.read_bytes()
    at = 0
    while at < len(content):
        body = b""
        if at + _HEAD.size <= len(content):
            length, checksum = _HEAD.unpack_from(content, at)
            body = content[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length or zlib.crc32(body) != checksum:
                body = b""
        if not body:
            # The write that a crash cut off: its request was never answered.
            logger.warning("%s ends in the middle of a request, at byte %d", path, at)
            return
        yield msgspec.msgpack.decode(body, type=_Entry)
        at += _HEAD.size + len(body)
