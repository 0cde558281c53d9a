"""Units: staged records that become visible together, written as one stretch of the log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.errors import StagedPartMissingError
from headrace.protocol.columns import Records, tag_hashes
from headrace.store.fileops import FileOps, read_all
from headrace.store.record import queue_of

if TYPE_CHECKING:
    from headrace.store.index import QueueKey
    from headrace.store.requests import QueueAppend
    from headrace.store.staging import StagedRun

__all__ = ["Piece", "UnitPlan"]

#: Records of one queue are written in entries of up to this size.
_PIECE_BYTES = 4 * 1024 * 1024


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
            if len(run.starts):
                queues.setdefault((run.topic, run.queue_id), []).append(run)
        self._groups = [(key, group) for key, parts in queues.items() for group in _grouped(parts)]
        self._extra = [append for append in extra if len(append.records.starts)]

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
    """Join small runs and split large ones, in order, to pieces of the right size."""
    group: list[StagedRun] = []
    size = 0
    for run in runs:
        for part in _split(run):
            if group and size + part.size > _PIECE_BYTES:
                yield group
                group, size = [], 0
            group.append(part)
            size += part.size
    yield group


def _split(run: StagedRun) -> Iterator[StagedRun]:
    ends = np.append(run.starts[1:], run.size)
    first = 0
    while first < len(ends):
        begin = int(run.starts[first])
        last = max(int(np.searchsorted(ends, begin + _PIECE_BYTES, side="right")), first + 1)
        yield replace(
            run,
            offset=run.offset + begin,
            size=int(ends[last - 1]) - begin,
            starts=run.starts[first:last] - begin,
            tags=run.tags[first:last],
        )
        first = last


def _copy(key: QueueKey, group: list[StagedRun], files: _Files) -> Piece:
    content = bytearray(sum(run.size for run in group))
    view = memoryview(content)
    starts = []
    at = 0
    for run in group:
        files.read(run.path, run.offset, view[at : at + run.size])
        starts.append(run.starts + at)
        at += run.size
    if queue_of(content) != key:
        raise StagedPartMissingError(f"staged records in {group[0].path} are not of queue {key}")
    records = Records(content, np.concatenate(starts))
    return Piece(key, records, np.concatenate([run.tags for run in group]))


class _Files:
    """Staged files, each opened once for a unit."""

    def __init__(self, ops: FileOps) -> None:
        self._ops = ops
        self._fds: dict[Path, int] = {}

    def read(self, path: Path, offset: int, target: memoryview) -> None:
        try:
            if path not in self._fds:
                self._fds[path] = self._ops.open(path, os.O_RDONLY)
            content = read_all(self._ops, self._fds[path], len(target), offset)
        except OSError as error:
            raise StagedPartMissingError(f"cannot read staged file {path}: {error}") from error
        if len(content) < len(target):
            raise StagedPartMissingError(f"staged file {path} is shorter than what was staged")
        target[:] = content

    def close(self) -> None:
        for fd in self._fds.values():
            self._ops.close(fd)
        self._fds = {}
