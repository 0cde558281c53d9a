"""What callers ask of the writer, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.protocol.columns import Records
    from headrace.store.beside import SideUnit
    from headrace.store.index import QueueKey
    from headrace.store.staging import StageKey

__all__ = [
    "AloneRequest",
    "AppendRequest",
    "AppendResult",
    "CompactRequest",
    "DropRequest",
    "JoinRequest",
    "QueueAppend",
    "Request",
    "StopRequest",
    "UnitRequest",
    "UnitResult",
    "WakeRequest",
]


@dataclass(frozen=True, slots=True, eq=False)
class QueueAppend:
    """Ready-made records for one queue; the store stamps them in place.

    Whoever makes them vouches that all are of this queue: the store looks at the first one.
    Bytes that came over the network as records (staged ones) are checked one by one.
    """

    topic: str
    queue_id: int
    records: Records

    @property
    def key(self) -> QueueKey:
        """Topic and queue id."""
        return self.topic, self.queue_id

    @property
    def size(self) -> int:
        """Bytes of the records."""
        return len(self.records.data)


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where the records of one append went."""

    #: Queue offset of the first record.
    first_offset: int
    #: Log position of the first record.
    first_position: int
    #: Store time of all of them, ms since 1970.
    timestamp: int


@dataclass(frozen=True, slots=True)
class UnitResult:
    """Where a unit went."""

    #: One past the unit's last byte in the log.
    position: int
    #: Offset of the unit's first record in each queue.
    first_offsets: dict[QueueKey, int]


@dataclass(slots=True, eq=False)
class AppendRequest:
    """Append to some queues."""

    appends: list[QueueAppend]
    size: int
    future: Future[list[AppendResult]] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class UnitRequest:
    """Commit staged parts and some more records as one unit."""

    keys: list[StageKey]
    extra: list[QueueAppend]
    size: int = 0
    future: Future[UnitResult] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class JoinRequest:
    """Let a unit that was written beside the log join it; None when it no longer fits."""

    unit: SideUnit
    size: int = 0
    future: Future[UnitResult | None] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class DropRequest:
    """Delete a topic."""

    topic: str
    size: int = 0
    future: Future[int] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class AloneRequest:
    """Do some work on the writer's thread, between two groups."""

    work: Callable[[], Any]
    size: int = 0
    future: Future[Any] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class CompactRequest:
    """Compact a topic from here on."""

    topic: str
    size: int = 0
    future: Future[None] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class WakeRequest:
    """Have the writer look at what is due."""

    size: int = 0


@dataclass(slots=True, eq=False)
class StopRequest:
    """End the writer."""

    size: int = 0


Request = (
    AppendRequest
    | UnitRequest
    | JoinRequest
    | DropRequest
    | CompactRequest
    | AloneRequest
    | WakeRequest
    | StopRequest
)
