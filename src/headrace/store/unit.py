"""Units: staged records that become visible together, written as one stretch of the log."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.errors import StagedPartMissingError
from headrace.protocol.columns import Records, tag_hashes
from headrace.store.fileops import FileOps, read_all
from headrace.store.staging import RUN_BYTES

if TYPE_CHECKING:
    from headrace.store.index import QueueKey
    from headrace.store.requests import QueueAppend
    from headrace.store.staging import StagedRun

__all__ = ["Piece", "UnitPlan"]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """The records of one entry to be."""

    key: QueueKey
    records: Records
    tags: npt.NDArray[np.int32]

    @classmethod
    def of(cls, append: QueueAppend) -> Piece:
        """Make the piece of an append."""
        return cls(append.key, append.records, tag_hashes(append.records))


class UnitPlan:
    """The pieces of a unit, queue by queue; staged bytes are copied only when their turn comes.

    Parts keep the order in which they are named, and so do the records in each.
    """

    def __init__(
        self, runs: Sequence[StagedRun], extra: Sequence[QueueAppend], ops: FileOps
    ) -> None:
        self._ops = ops
        queues: dict[QueueKey, list[StagedRun]] = {}
        for run in runs:
            queues.setdefault((run.topic, run.queue_id), []).append(run)
        self._groups = [(key, group) for key, parts in queues.items() for group in _grouped(parts)]
        self._extra = [append for append in extra if len(append.records.starts)]

    @property
    def keys(self) -> set[QueueKey]:
        """The queues that get records."""
        return {key for key, _ in self._groups} | {append.key for append in self._extra}

    def __len__(self) -> int:
        return len(self._groups) + len(self._extra)

    def __iter__(self) -> Iterator[Piece]:
        files = _Files(self._ops)
        try:
            for key, group in self._groups:
                yield _copy(key, group, files)
        finally:
            files.close()
        for append in self._extra:
            yield Piece.of(append)


def _grouped(runs: list[StagedRun]) -> Iterator[list[StagedRun]]:
    """Join small runs, in order, to pieces of the right size."""
    group: list[StagedRun] = []
    size = 0
    for run in runs:
        if group and size + run.size > RUN_BYTES:
            yield group
            group, size = [], 0
        group.append(run)
        size += run.size
    yield group


def _copy(key: QueueKey, group: list[StagedRun], files: _Files) -> Piece:
    content = bytearray(sum(run.size for run in group))
    view = memoryview(content)
    starts = []
    at = 0
    for run in group:
        files.read(run, view[at : at + run.size])
        starts.append(run.starts + at)
        at += run.size
    records = Records(content, np.concatenate(starts))
    return Piece(key, records, np.concatenate([run.tags for run in group]))


class _Files:
    """Staged files, each opened once for a unit."""

    def __init__(self, ops: FileOps) -> None:
        self._ops = ops
        self._fds: dict[Path, int] = {}

    def read(self, run: StagedRun, target: memoryview) -> None:
        path = run.path
        try:
            if path not in self._fds:
                self._fds[path] = self._ops.open(path, os.O_RDONLY)
            content = read_all(self._ops, self._fds[path], run.size, run.offset)
        except OSError as error:
            raise _lost(f"cannot read staged file {path}: {error.strerror or error}") from error
        if zlib.crc32(content) != run.crc:
            where = f"{run.size} bytes from byte {run.offset} on"
            raise _lost(f"staged file {path} is damaged: {where} are not what was staged")
        target[:] = content

    def close(self) -> None:
        for fd in self._fds.values():
            self._ops.close(fd)
        self._fds = {}


def _lost(what: str) -> StagedPartMissingError:
    return StagedPartMissingError(
        what, hint="plan the batch anew and stage it again; if it comes back, check the disk"
    )
