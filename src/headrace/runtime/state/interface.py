"""What a state store is: the interface of RIP-58, "store in locally", for one partition.

The truth of a store is its state topic; a store is a copy of it that makes reads fast.  The engine
makes one for each operator with state in each task, and calls, in this order: ``recover``,
``wait_until_ready``, then reads and writes, then ``persist`` once, and ``close``.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.runtime.chunk import NEVER

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from headrace.protocol.transactions import StateSummary


# Timers in a state store: what is to be done when event time, or the clock, gets there.

_TIME = struct.Struct(">Q")
#: Times before 1970 come first, too.
_BIAS = 1 << 63


class Entries(Protocol):
    """What timers ask of a store."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set one entry."""

    def delete(self, key: bytes) -> None:
        """Delete one entry."""

    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries with keys from ``start`` to before ``stop``, in order."""


class Timers:
    """Timers of one store, in the order of their times; finding those that are due costs by them.

    Parameters
    ----------
    store
        Where they lie: a timer is an entry without a value of its own.
    family
        First byte of their keys.
    settled
        All timers up to this time have been taken.  Nothing looks there again: a store keeps what
        was deleted for a while, and would have to pass over it.
    passed
        How far time had come.  Where it may be behind ``settled``, which it is not unless given.
    early
        First byte of the keys of timers that are set when their time has passed, where that may
        happen: they are few, and looked for on their own.

    Examples
    --------
    >>> from headrace.runtime import MemoryStore
    >>> timers = Timers(MemoryStore(), b"t")
    >>> timers.set(20, b"b"), timers.set(10, b"a"), timers.set(30, b"c")
    (None, None, None)
    >>> list(timers.due(20)), list(timers.due(20))
    ([(10, b'a'), (20, b'b')], [])
    """

    def __init__(
        self,
        store: Entries,
        family: bytes,
        *,
        settled: int = NEVER,
        passed: int = NEVER,
        early: bytes = b"",
    ) -> None:
        self._store = store
        self._family = family
        self._start = -_BIAS if settled == NEVER else settled + 1
        self._passed = max(passed, settled)
        self._early = early

    def set(self, time: int, what: bytes) -> None:
        """Set a timer, ms since 1970; to set it again changes nothing."""
        early = self._early and time <= self._passed
        self._store.put(_key(self._early if early else self._family, time, what), b"")

    def clear(self, time: int, what: bytes) -> None:
        """Take a timer back, also one that is not there."""
        self._store.delete(_key(self._family, time, what))
        if self._early:
            self._store.delete(_key(self._early, time, what))

    def due(self, time: int) -> Iterator[tuple[int, bytes]]:
        """Take the timers up to a time, that time included, oldest first."""
        found = [
            key
            for family, start in self._ranges()
            if start <= time
            for key, _ in self._store.range(_key(family, start, b""), _key(family, time + 1, b""))
        ]
        self._start, self._passed = max(self._start, time + 1), max(self._passed, time)
        for key in found:
            self._store.delete(key)
            yield _time_of(key), key[1 + _TIME.size :]

    def next(self) -> int | None:
        """Return the time of the first timer, or None where there is none."""
        for family, start in self._ranges():
            stop = family + b"\xff" * (_TIME.size + 1)
            for key, _ in self._store.range(_key(family, start, b""), stop):
                return _time_of(key)
        return None

    def _ranges(self) -> list[tuple[bytes, int]]:
        """Return the families in the order of their times, and where each begins."""
        ordinary = (self._family, self._start)
        return [(self._early, -_BIAS), ordinary] if self._early else [ordinary]


def _key(family: bytes, time: int, what: bytes) -> bytes:
    return family + _TIME.pack(time + _BIAS) + what


def _time_of(key: bytes) -> int:
    (time,) = _TIME.unpack_from(key, 1)
    return int(time) - _BIAS


Attempted = tuple[int, int, int]
"""Epoch, batch and number of an attempt: the commit names the one that counts."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """What one batch changed in one partition of a store: each key once, None deletes."""

    keys: list[bytes]
    values: list[bytes | None]
    #: State message bodies, empty for deletes.
    bodies: pa.BinaryArray
    #: Live entries and content check after the batch.
    count: int
    checksum: int
    #: Bytes of the bodies of all live entries after the batch.
    size: int = 0


class StateStore(ABC):
    """The state of one operator in one partition, as one attempt of one batch sees it.

    Keys and values are bytes.  What a batch writes is seen by its own reads at once, by others only
    after the commit: an attempt that no commit names has never happened.  So a store has two
    duties besides reading and writing: to begin exactly at the commit that it is given
    (:meth:`recover`), and to leave its changes where a later ``recover`` finds them
    (:meth:`persist`), or else to read them from the state topic.

    :class:`~headrace.runtime.LayeredStore` does all but these two; the engine's own stores are
    made of it, in RocksDB and, for tests, in memory.
    """

    #: State messages that :meth:`recover` read, for statistics.
    restored: int = 0

    @abstractmethod
    def recover(self, commit: StateSummary | None, lineage: list[list[int]]) -> None:
        """Begin at a commit: nothing before it is missing, nothing after it is there.

        RIP-58's ``recover(addQueues, removeQueues)``: here a partition owns its state, so a store
        is one partition's, and a partition that moved away leaves a copy that is old.

        Parameters
        ----------
        commit
            What the commit record says of the store; None before its first change.
        lineage
            Epoch and first batch of every epoch that committed: a copy of another lineage is void.
        """

    def wait_until_ready(self) -> None:  # noqa: B027 - most stores are ready by then
        """Wait until all of the state is there (RIP-58's ``waitIfNotReady``).

        For stores that recover in the background; no record is handled before it returns.
        """

    @abstractmethod
    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each key, None where there is no entry."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if there is no entry."""
        return self.get_many([key])[0]

    @abstractmethod
    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set entries; None deletes."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set one entry."""
        self.put_many([key], [value])

    def delete(self, key: bytes) -> None:
        """Delete one entry; deleting what is not there is harmless."""
        self.put_many([key], [None])

    def began_with(self, start: bytes, stop: bytes) -> bool:
        """Return whether the last commit left entries from ``start`` to before ``stop``.

        A store that cannot tell this cheaply returns True, as this one does.
        """
        del start, stop
        return True

    def add_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set entries that the last commit did not leave: a store may spare the look-up."""
        self.put_many(keys, values)

    @abstractmethod
    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries with keys from ``start`` to before ``stop``, in order.

        Both begin with the same byte.  The store may be changed meanwhile, behind what was given.
        """

    @abstractmethod
    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all entries in the order of their keys."""

    def search_below(self, family: bytes, watermark: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield what lies below a watermark: time, rest of the key, value; oldest first.

        RIP-58's ``searchStateLessThanWatermark``.  The keys are a family of one byte, a time in
        eight bytes (ms since 1970, so that earlier ones come first), and anything: as windows and
        timers have them.  It costs by what it gives.

        Examples
        --------
        >>> from headrace.runtime import MemoryStore
        >>> store = MemoryStore()
        >>> for end in (20, 10, 30):
        ...     store.put(b"w" + store.time_bytes(end) + b"key", b"sum")
        >>> list(store.search_below(b"w", 30))
        [(10, b'key', b'sum'), (20, b'key', b'sum')]
        """
        start = family + _TIME.pack(0)
        for key, value in self.range(start, family + self.time_bytes(watermark)):
            (at,) = _TIME.unpack_from(key, len(family))
            yield at - _BIAS, key[len(start) :], value

    @staticmethod
    def time_bytes(time: int) -> bytes:
        """Write a time, ms since 1970, so that bytes are in the order of times."""
        return _TIME.pack(time + _BIAS)

    @abstractmethod
    def persist(self, attempt: Attempted) -> ChangeSet:
        """Return what the batch changed, each key once, for the state topic.

        RIP-58's ``persist``, with its rules: after the batch was handled and before its offsets are
        committed, and only what changed.  The engine writes it, in the batch's transaction.

        Parameters
        ----------
        attempt
            Who changed it; a later ``recover`` may be given a commit that names this attempt.
        """

    def close(self) -> None:  # noqa: B027 - not every store holds something
        """Release files and locks; called after a failure, too, then without ``persist``."""


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where a store of a user's own kind belongs.

    Parameters
    ----------
    job, operator
        Names.
    partition
        Number of the partition.
    folder
        For files of this store on this machine; not made yet.
    entries
        Reads the state topic from one offset to before another: blocks of keys and values in the
        order of writing, where the last value counts and None deletes.
    """

    job: str
    operator: str
    partition: int
    folder: Path
    entries: Callable[[int, int], Iterator[tuple[list[bytes], list[bytes | None]]]]


StoreFactory = Callable[[StorePlace], StateStore]
"""Makes a store, in each task: sent to the workers by value."""
