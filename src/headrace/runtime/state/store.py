"""State stores: what a stateful processor reads and writes for one partition.

The truth of a store is its state topic; what a processor sees is a base, as of the last commit,
under the changes of the running batch.  Sizes and a content check are kept with every change, so
that a copy that differs from what was committed is noticed.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections import defaultdict
from itertools import compress
from operator import ne
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.runtime.state.interface import Attempted, ChangeSet, StateStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rocksdict import Rdict

    from headrace.protocol.transactions import StateSummary
    from headrace.runtime.chunk import Int64s


_MODULUS = 1 << 64
#: Fewer entries than this are encoded one by one in less time than columns take.
_WORTH_COLUMNS = 32


class StateBase(Protocol):
    """A store as of the last commit."""

    def get_many(self, keys: list[bytes]) -> Sequence[bytes | None]:
        """Return the value of each key, None where there is no entry."""

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all entries in the order of their keys."""

    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries with keys from ``start`` to before ``stop``, in order."""


class EmptyBase:
    """A store before its first commit."""

    def get_many(self, keys: list[bytes]) -> Sequence[bytes | None]:
        """Return None for each key."""
        return [None] * len(keys)

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all entries in the order of their keys."""
        return iter(())

    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries of a range of keys."""
        del start, stop
        return iter(())


class MemoryBase:
    """A store in memory, for the test driver."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        # Made when it is asked for: whoever fills a base of their own may write into the entries.
        self._ordered: list[bytes] | None = None
        #: Changes of attempts that no commit has named yet.
        self.waiting: dict[Attempted, ChangeSet] = {}

    def get_many(self, keys: list[bytes]) -> Sequence[bytes | None]:
        """Return the value of each key, None where there is no entry."""
        return list(map(self.entries.get, keys))

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all entries in the order of their keys."""
        return iter([(key, self.entries[key]) for key in self._keys()])

    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries of a range of keys, in order."""
        return iter([(key, self.entries[key]) for key in _between(self._keys(), start, stop)])

    def _keys(self) -> list[bytes]:
        if self._ordered is None:
            self._ordered = sorted(self.entries)
        return self._ordered

    def apply(self, changes: ChangeSet) -> None:
        """Make the changes of a batch part of the base."""
        fresh = [key for key in changes.keys if key not in self.entries]
        for key, value in zip(changes.keys, changes.values, strict=True):
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
        if self._ordered is not None:
            self._ordered = sorted(key for key in [*self._ordered, *fresh] if key in self.entries)


class _OrderedKeys:
    """Keys in order: most of them in one list, and what came since in a short one beside it."""

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._known = set(keys)
        self._most = sorted(self._known)
        self._recent: list[bytes] = []

    def add(self, keys: Iterable[bytes]) -> None:
        fresh = set(keys) - self._known
        self._known |= fresh
        # A list takes a key at the cost of moving those behind it, or many at once by sorting.
        if len(self._recent) + len(fresh) > 1024 + len(self._most) // 16:
            self._most = sorted([*self._most, *self._recent, *fresh])
            self._recent = []
        else:
            for key in fresh:
                insort(self._recent, key)

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        recent = _between(self._recent, start, stop)
        return sorted([*_between(self._most, start, stop), *recent])


def _between(keys: list[bytes], start: bytes, stop: bytes) -> list[bytes]:
    return keys[bisect_left(keys, start) : bisect_left(keys, stop)]


class LayeredStore(StateStore):
    """The changes of a batch over a store as of the last commit.

    A store of another kind needs two methods more: :meth:`opened` and :meth:`kept`.
    """

    def __init__(self) -> None:
        self._begin(EmptyBase(), None)

    def recover(self, commit: StateSummary | None, lineage: list[list[int]]) -> None:
        """Begin at a commit."""
        self._begin(self.opened(commit, lineage), commit)

    @abstractmethod
    def opened(self, commit: StateSummary | None, lineage: list[list[int]]) -> StateBase:
        """Return the store exactly as of a commit; see :meth:`StateStore.recover`."""

    @abstractmethod
    def kept(self, attempt: Attempted, base: StateSummary | None, changes: ChangeSet) -> None:
        """Keep the changes of an attempt apart, until a commit names it."""

    def persist(self, attempt: Attempted) -> ChangeSet:
        """Return what the batch changed; entries that ended as they were are left out."""
        changes = self.change_set()
        if changes.keys:
            self.kept(attempt, self._commit, changes)
        return changes

    def _begin(self, base: StateBase, commit: StateSummary | None) -> None:
        self._base = base
        self._commit = commit
        self._changes: dict[bytes, bytes | None] = {}
        self._before: dict[bytes, bytes | None] = {}
        #: Changed keys in order, of those first bytes that ranges were asked of.
        self._ordered: dict[int, _OrderedKeys] = {}
        #: Keys that changed since; and those of them, by first byte, that a range looked through
        #: and that the next one of theirs puts in order.
        self._unordered: list[bytes] = []
        self._waiting: dict[int, list[bytes]] = defaultdict(list)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each key, from the changes of this batch first."""
        changes = self._changes
        if not changes:
            found = list(self._base.get_many(keys))
            self._before.update(zip(keys, found, strict=True))
            return found
        missing = [key for key in keys if key not in self._before and key not in changes]
        self._before.update(zip(missing, self._base.get_many(missing), strict=True))
        before = self._before
        return [changes[key] if key in changes else before[key] for key in keys]

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None if there is no entry."""
        if key in self._changes:
            return self._changes[key]
        if key not in self._before:
            self._before[key] = self._base.get_many([key])[0]
        return self._before[key]

    def began_with(self, start: bytes, stop: bytes) -> bool:
        """Return whether the last commit left entries from ``start`` to before ``stop``."""
        return next(self._base.range(start, stop), None) is not None

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set entries; None deletes."""
        self._changes.update(zip(keys, values, strict=True))
        if self._ordered:
            self._unordered.extend(keys)

    def add_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Set entries that the last commit did not leave, so that nobody looks them up.

        Examples
        --------
        >>> store = MemoryStore()
        >>> store.add_many([b"a"], [b"1"])
        >>> store.get(b"a")
        b'1'
        """
        self._before.update(dict.fromkeys(keys))
        self.put_many(keys, values)

    def put(self, key: bytes, value: bytes) -> None:
        """Set one entry."""
        self._changes[key] = value
        if self._ordered:
            self._unordered.append(key)

    def delete(self, key: bytes) -> None:
        """Delete one entry; deleting what is not there is harmless."""
        self._changes[key] = None
        if self._ordered:
            self._unordered.append(key)

    def range(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries with keys from ``start`` to before ``stop``, changes included, in order.

        Both begin with the same byte: families of keys that are walked in order have one of their
        own.  The store may be changed meanwhile, behind what was given.

        Examples
        --------
        >>> store = MemoryStore()
        >>> store.put_many([b"t2", b"t1", b"x"], [b"b", b"a", b"c"])
        >>> list(store.range(b"t", b"u"))
        [(b't1', b'a'), (b't2', b'b')]
        """
        family = start[0]
        if family not in self._ordered:
            self._ordered[family] = _OrderedKeys(k for k in self._changes if k and k[0] == family)
        self._order(family)
        changed = self._ordered[family].between(start, stop)
        base = self._noted(self._base.range(start, stop))
        if not changed:
            yield from base
            return
        changes = self._changes
        fresh = [(key, changes[key]) for key in changed]
        for key, value in _overlaid(base, fresh):
            if value is not None:
                yield key, value

    def _noted(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Remember what is walked: most of it is deleted next, and then asked for once more."""
        before = self._before
        for key, value in entries:
            before[key] = value
            yield key, value

    def _order(self, family: int) -> None:
        unordered, self._unordered = self._unordered, []
        for known in self._ordered if unordered else ():
            first = bytes((known,))
            self._waiting[known] += [key for key in unordered if key.startswith(first)]
        self._ordered[family].add(self._waiting.pop(family, ()))

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all entries, changes included, in the order of their keys."""
        merged = dict(self._base.scan())
        for key, value in self._changes.items():
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = value
        return iter(sorted(merged.items()))

    def change_set(self) -> ChangeSet:
        """Return what this batch changed; entries that ended as they were are left out."""
        unseen = [key for key in self._changes if key not in self._before]
        self._before.update(zip(unseen, self._base.get_many(unseen), strict=True))
        keys, news = list(self._changes), list(self._changes.values())
        olds = list(map(self._before.__getitem__, keys))
        changed = list(map(ne, news, olds))
        if not all(changed):
            keys = list(compress(keys, changed))
            news, olds = (list(compress(values, changed)) for values in (news, olds))
        # Where there was nothing, or nothing is left, the body is empty and counts for nothing.
        bodies, replaced = encode_entries(keys, news), encode_entries(keys, olds)
        commit = self._commit
        count = (commit.count if commit else 0) + olds.count(None) - news.count(None)
        checksum = commit.checksum if commit else 0
        checksum += _checksum(bodies) - _checksum(replaced)
        # A commit of an older release says no size.
        size = (commit.size if commit else 0) + _size(bodies) - _size(replaced)
        return ChangeSet(keys, news, bodies, count, checksum % _MODULUS, max(0, size))


class MemoryStore(LayeredStore):
    """A store in memory, without a topic to be read from; what outlives an attempt is given."""

    def __init__(self, memory: MemoryBase | None = None) -> None:
        super().__init__()
        self._memory = MemoryBase() if memory is None else memory
        self._begin(self._memory, None)

    def opened(self, commit: StateSummary | None, lineage: list[list[int]]) -> StateBase:
        """Return what is there, with the changes of the attempt that the commit names."""
        del lineage
        if commit is not None:
            attempt = (commit.epoch, commit.batch, commit.attempt)
            if changes := self._memory.waiting.pop(attempt, None):
                self._memory.apply(changes)
        return self._memory

    def kept(self, attempt: Attempted, base: StateSummary | None, changes: ChangeSet) -> None:
        """Keep the changes of an attempt."""
        del base
        self._memory.waiting[attempt] = changes


def _overlaid(
    base: Iterator[tuple[bytes, bytes]], changes: list[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Join two runs that are in order of their keys; a change hides what lies below it."""
    at = 0
    for key, value in base:
        while at < len(changes) and changes[at][0] < key:
            yield changes[at]
            at += 1
        if at == len(changes) or changes[at][0] != key:
            yield key, value
    yield from changes[at:]


def _checksum(bodies: pa.BinaryArray) -> int:
    # A delete has no body, and that of no bytes is zero.
    return sum(map(crc32, bodies.to_pylist()))


def _size(bodies: pa.BinaryArray) -> int:
    return pc.sum(pc.binary_length(bodies)).as_py() or 0


def encode_entries(keys: list[bytes], values: list[bytes | None]) -> pa.BinaryArray:
    r"""Encode state message bodies: key length u32, key, value length u32, value.

    A delete is an empty body (RIP-58, "store in remotely").

    >>> encode_entries([b"k"], [b"vv"])[0].as_py()
    b'\x00\x00\x00\x01k\x00\x00\x00\x02vv'
    """
    if len(keys) < _WORTH_COLUMNS:
        return pa.array(map(_entry, keys, values), pa.binary())
    key_column = pa.array(keys, pa.binary())
    value_column = pa.array(values, pa.binary())
    bodies = pc.binary_join_element_wise(
        _lengths(key_column), key_column, _lengths(value_column), value_column, b""
    )
    return bodies.fill_null(b"")


def _entry(key: bytes, value: bytes | None) -> bytes:
    if value is None:
        return b""
    return b"%b%b%b%b" % (len(key).to_bytes(4), key, len(value).to_bytes(4), value)


def _lengths(column: pa.BinaryArray) -> pa.BinaryArray:
    sizes = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(">u4")
    offsets = np.arange(len(column) + 1, dtype=np.int32) * 4
    return pa.Array.from_buffers(
        pa.binary(), len(column), [None, pa.py_buffer(offsets), pa.py_buffer(sizes.tobytes())]
    )


def decode_entries(bodies: pa.BinaryArray) -> tuple[list[bytes], list[bytes]]:
    """Split state message bodies, none of them empty, into keys and values.

    >>> decode_entries(encode_entries([b"k", b"key"], [b"vv", b""]))
    ([b'k', b'key'], [b'vv', b''])
    """
    if len(bodies) == 0:
        return [], []
    buffers = bodies.buffers()
    offsets = np.frombuffer(buffers[1], np.int32)[bodies.offset :][: len(bodies) + 1]
    data = np.frombuffer(buffers[2], np.uint8)
    starts = offsets[:-1].astype(np.int64)
    key_sizes = _read_u32(data, starts)
    key_starts = starts + 4
    value_starts = key_starts + key_sizes + 4
    return (
        _pick(buffers[2], key_starts, key_starts + key_sizes),
        _pick(buffers[2], value_starts, offsets[1:].astype(np.int64)),
    )


def _read_u32(data: npt.NDArray[np.uint8], starts: Int64s) -> Int64s:
    wide = data[starts[:, None] + np.arange(4)]
    return np.ascontiguousarray(wide).view(">u4").ravel().astype(np.int64)


def _pick(data: pa.Buffer, starts: Int64s, ends: Int64s) -> list[bytes]:
    # One array over the whole buffer whose odd elements are the wanted slices.
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[0] = 0
    offsets[1::2] = starts
    offsets[2::2] = ends
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * len(starts), [None, pa.py_buffer(offsets), data]
    )
    return list(pieces.take(pa.array(np.arange(1, 2 * len(starts), 2))).to_pylist())


# The engine's own stores: over copies that some place keeps, on disk or in memory.


class StoreCopy:
    """An open copy of one partition of one store, as of the last commit."""

    def __init__(self, base: StateBase, database: Rdict | None = None, restored: int = 0) -> None:
        self.base = base
        #: State messages that were read to bring it to the commit.
        self.restored = restored
        self._database = database

    def close(self) -> None:
        """Close the database, so that other processes can open it."""
        if self._database is not None:
            self._database.close()
            self._database = None


class StateCopies(Protocol):
    """Opens state as of the last commit, and keeps what an attempt changed."""

    def open(
        self, store: str, partition: int, summary: StateSummary | None, lineage: list[list[int]]
    ) -> StoreCopy:
        """Open a store of one partition."""

    def save(
        self,
        store: str,
        partition: int,
        attempt: tuple[int, int, int],
        base: StateSummary | None,
        changes: ChangeSet,
    ) -> None:
        """Keep the changes of an attempt."""


class CopiedStore(LayeredStore):
    """A store over a copy.

    Parameters
    ----------
    copies
        Where the copy is.
    operator
        Name of the operator.
    partition
        Number of the partition.
    """

    def __init__(self, copies: StateCopies, operator: str, partition: int) -> None:
        super().__init__()
        self._copies = copies
        self._operator = operator
        self._partition = partition
        self._copy: StoreCopy | None = None

    def opened(self, commit: StateSummary | None, lineage: list[list[int]]) -> StateBase:
        """Open the copy."""
        self._copy = self._copies.open(self._operator, self._partition, commit, lineage)
        self.restored = self._copy.restored
        return self._copy.base

    def kept(self, attempt: Attempted, base: StateSummary | None, changes: ChangeSet) -> None:
        """Leave the changes beside the copy."""
        self._copies.save(self._operator, self._partition, attempt, base, changes)

    def close(self) -> None:
        """Close the copy, so that other processes can open it."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None
