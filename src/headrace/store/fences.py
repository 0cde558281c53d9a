"""Fences: VOID entries, which stand where damaged bytes stood and say what was lost with them.

``headrace store repair`` lays them.  A fence is as long as what it replaces, so that every other
position of the log stays what it was; the queue offsets that are lost stay taken.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.store.entries import HEADER_SIZE

if TYPE_CHECKING:
    from headrace.store.fileops import Buffer

__all__ = ["Loss", "fence_sizes", "pack_losses", "parse_losses", "room_for"]

_MAGIC = b"HRVD"
#: Magic, number of losses.
_HEAD = struct.Struct("<4sI")
#: Bytes of the topic, queue id, first lost offset, one past the last, birth of the queue.
_LOSS = struct.Struct("<Hiqqq")
#: A deleted topic stands for all of its queues.
_ALL = -1
#: Recovery holds one entry in memory: a large hole gets many fences.
_LARGEST = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Loss:
    """Offsets of one queue that were lost, or (without any) that its topic was deleted there."""

    topic: str
    queue_id: int
    first: int
    #: One past the last lost offset.
    end: int
    #: Position of the queue's first entry when that is lost, too: it names the queue's life.
    birth: int = -1

    @classmethod
    def of_topic(cls, topic: str) -> Loss:
        """Say that the entry that deleted a topic was lost; the delete holds."""
        return cls(topic, _ALL, 0, 0)

    @property
    def is_delete(self) -> bool:
        """Whether it stands for a deleted topic."""
        return self.queue_id == _ALL

    @property
    def count(self) -> int:
        """Number of lost offsets."""
        return self.end - self.first

    @property
    def size(self) -> int:
        """Bytes that it takes in a fence."""
        return _LOSS.size + len(self.topic.encode())

    def __str__(self) -> str:
        if self.is_delete:
            return f"the entry that deleted topic {self.topic!r}"
        what = f"{self.first}" if self.count == 1 else f"{self.first} to {self.end - 1}"
        return f"topic {self.topic!r}, queue {self.queue_id}, offset {what}"


def room_for(losses: Sequence[Loss]) -> int:
    """Give the size of the payload that holds losses.

    A lost record took more room than its loss takes, so a fence holds what it stands for.
    """
    if len(losses) == 1 and losses[0].is_delete:
        return len(losses[0].topic.encode())
    return _HEAD.size + sum(loss.size for loss in losses) if losses else 0


def pack_losses(losses: Sequence[Loss], size: int) -> bytes:
    """Make the payload of a fence, of a given size.

    Examples
    --------
    >>> loss = Loss("lines", 2, 7, 9)
    >>> parse_losses(pack_losses([loss], 100)) == [loss]
    True
    >>> parse_losses(pack_losses([], 0))
    []
    """
    parts = [_HEAD.pack(_MAGIC, len(losses))] if losses else []
    for loss in losses:
        name = loss.topic.encode()
        numbers = (loss.queue_id, loss.first, loss.end, loss.birth)
        parts += [_LOSS.pack(len(name), *numbers), name]
    packed = b"".join(parts)
    if len(packed) > size and len(losses) == 1 and losses[0].is_delete:
        # As short as the entry that was lost.
        packed = losses[0].topic.encode()
    if len(packed) > size:
        raise ValueError(f"{len(losses)} losses take {len(packed)} bytes, there are {size}")
    return packed.ljust(size, b"\0")


def parse_losses(payload: Buffer) -> list[Loss]:
    """Read the losses that a fence names."""
    if len(payload) < _HEAD.size or bytes(payload[:4]) != _MAGIC:
        name = bytes(payload).rstrip(b"\0").decode()
        return [Loss.of_topic(name)] if name else []
    (_, count), at = _HEAD.unpack_from(payload), _HEAD.size
    losses = []
    for _ in range(count):
        size, queue_id, first, end, birth = _LOSS.unpack_from(payload, at)
        at += _LOSS.size
        losses.append(Loss(str(payload[at : at + size], "utf-8"), queue_id, first, end, birth))
        at += size
    return losses


def fence_sizes(size: int) -> list[int]:
    """Split a stretch into the sizes of fences, headers included; it takes at least a header.

    >>> fence_sizes(100), [size >> 20 for size in fence_sizes(9 << 20)]
    ([100], [4, 4, 1])
    """
    if size < HEADER_SIZE:
        raise ValueError(f"{size} bytes are less than the header of an entry")
    sizes = []
    while size > _LARGEST + HEADER_SIZE:
        sizes.append(_LARGEST)
        size -= _LARGEST
    return [*sizes, size]
