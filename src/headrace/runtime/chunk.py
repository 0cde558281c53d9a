"""A run of records in columns: what processors take and return."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columns import ColumnValues
from headrace.errors import JobFailedError

# Marks: the order in which records are handled, and the place of the message that caused each.
#
# A mark is one number, as all records carry one and are sorted by it.  That of a message is made of
# its position in its broker's commit log and, below that, of the broker: positions alone are not
# enough, since each broker counts its own.

#: Bits that number a broker; the other 53 hold positions of up to nine petabytes.
_BROKER_BITS = 10
#: Marks of tuples that no message caused: below those of all messages, by partition and order.
_FIRST_OF_SPOUTS = -(1 << 61)
_PARTITION_BITS = 40


class LogPlace(NamedTuple):
    """Where a message lies."""

    broker: str
    #: In the broker's commit log.
    position: int


class Marks:
    """The marks of a batch.

    They are made by one task and read by others, so all of them number the brokers alike.

    Parameters
    ----------
    brokers
        Names of all brokers that hold queues of the job's sources, in the order of the batch's
        :class:`~headrace.runtime.control.Control`.

    Raises
    ------
    JobFailedError
        There are more brokers than marks can tell apart.

    Examples
    --------
    >>> import numpy as np
    >>> marks = Marks(["broker-a", "broker-b"])
    >>> one, other = (int(marks.of(name, np.array([77]))[0]) for name in ("broker-a", "broker-b"))
    >>> one < other < int(marks.of("broker-a", np.array([78]))[0])
    True
    >>> marks.place(other)
    LogPlace(broker='broker-b', position=77)
    """

    def __init__(self, brokers: Sequence[str]) -> None:
        if len(brokers) > 1 << _BROKER_BITS:
            raise JobFailedError(
                f"the job reads topics of {len(brokers)} brokers, and {1 << _BROKER_BITS} is the"
                " most that one can",
                hint="read the topics of some brokers by a job of their own",
            )
        self._brokers = brokers
        self._numbers = {broker: number for number, broker in enumerate(brokers)}

    def of(self, broker: str, positions: Int64s) -> Int64s:
        """Return the marks of messages of a broker, by their positions in its commit log."""
        return (positions << _BROKER_BITS) | self._numbers[broker]

    def place(self, mark: int) -> LogPlace | None:
        """Return the place of the message with a mark; None where no message caused it."""
        number = mark & ((1 << _BROKER_BITS) - 1)
        if mark < 0 or number >= len(self._brokers):
            return None
        return LogPlace(self._brokers[number], mark >> _BROKER_BITS)


def spout_mark(partition: int) -> int:
    """Return the first mark of tuples that no message caused.

    >>> spout_mark(0) < spout_mark(1) < 0
    True
    """
    return _FIRST_OF_SPOUTS + (partition << _PARTITION_BITS)


# Records without a key, which no operator that goes by keys can place.

#: Counter of the records that were skipped.
NULL_KEYS = "null_keys"


def count_keyless(counters: MutableMapping[str, int], operator: str, number: int = 1) -> None:
    """Count records without a key, in all and for the operator that skipped them.

    >>> counters = {}
    >>> count_keyless(counters, "op")
    >>> counters
    {'null_keys': 1, 'null_keys:op': 1}
    """
    for name in (NULL_KEYS, f"{NULL_KEYS}:{operator}"):
        counters[name] = counters.get(name, 0) + number


def skip_keyless(chunk: Chunk, counters: MutableMapping[str, int], operator: str) -> Chunk:
    """Leave out records whose key is None, and count them.

    Examples
    --------
    >>> from headrace.runtime.chunk import Chunk
    >>> counters = {}
    >>> chunk = Chunk(["a", None], [1, 2], np.array([0, 0]), np.array([1, 2]))
    >>> skip_keyless(chunk, counters, "op").values, counters
    ([1], {'null_keys': 1, 'null_keys:op': 1})
    """
    keys = chunk.key_list()
    skipped = keys.count(None)
    if not skipped:
        return chunk
    count_keyless(counters, operator, skipped)
    return chunk.take(np.array([i for i, key in enumerate(keys) if key is not None], np.intp))


Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: A time before all others, ms since 1970.
NEVER = -(1 << 62)

#: In place of a task's number: every task of the partition takes the tuple, or none was named.
ANY_TASK = -1

_Column = TypeVar("_Column")


@dataclass(slots=True)
class Chunk:
    """Records of one operator, in the order of their marks.

    A mark is the place of the message in its broker's commit log, or of the message that caused
    the record: the order in which everything is handled (:class:`~headrace.runtime.chunk.Marks`).
    """

    #: None: no record has a key.  Keys and values may be :class:`ColumnValues`, which read like
    #: a list and stay Arrow columns from one operator of columns to the next.
    keys: list[Any] | None
    values: list[Any]
    #: Event times, ms since 1970.
    times: Int64s
    marks: Int64s
    #: The messages' user properties, None where nobody downstream asks for them.
    headers: list[dict[str, str] | None] | None = None
    #: A record is late when its time is below this: the watermark of its own queue as it stood
    #: before it.  None: no record can be late, or nobody downstream asks.
    late_below: Int64s | None = None
    #: Which records take back an earlier one of the same key and value.  None: none does.
    retracts: Bools | None = None
    #: Number of each record's source queue, where an operator behind makes a clock of its own.
    queues: npt.NDArray[np.intp] | None = None
    #: The values as a shuffle brought them, for operators that keep them as they are.
    raws: pa.BinaryArray | None = None
    #: Of tuples between components: the task that emitted each, and the one that takes it.
    emitters: Int64s | None = None
    targets: Int64s | None = None

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def empty(cls) -> Chunk:
        """Make a chunk without records."""
        none = np.empty(0, np.int64)
        return cls(None, [], none, none)

    def with_values(self, values: list[Any]) -> Chunk:
        """Replace the values, one for one."""
        return replace(self, values=values, raws=None)

    def with_keys(self, keys: list[Any]) -> Chunk:
        """Replace the keys, one for one."""
        return replace(self, keys=keys)

    def key_list(self) -> list[Any]:
        """Return the keys, also where none is set."""
        return [None] * len(self.values) if self.keys is None else self.keys

    def late(self, allowance: int = 0) -> Bools:
        """Return which records would be late if they were so many milliseconds newer."""
        if self.late_below is None:
            return np.zeros(len(self), np.bool_)
        return self.times + allowance < self.late_below

    def without_retractions(self) -> Chunk:
        """Leave out what only takes earlier records back."""
        if self.retracts is None:
            return self
        return replace(self.take(np.flatnonzero(~self.retracts)), retracts=None)

    def split(self, chosen: Bools) -> tuple[Chunk, Chunk]:
        """Part the records that are chosen from the others."""
        if not chosen.any():
            return Chunk.empty(), self
        return self.take(np.flatnonzero(chosen)), self.take(np.flatnonzero(~chosen))

    def take(self, indices: npt.NDArray[np.intp]) -> Chunk:
        """Pick records by index, in the order of the indices."""
        return Chunk(
            _each(self.keys, lambda keys: _picked(keys, indices)),
            _picked(self.values, indices),
            self.times[indices],
            self.marks[indices],
            _each(self.headers, lambda headers: _picked(headers, indices)),
            _each(self.late_below, lambda column: column[indices]),
            _each(self.retracts, lambda column: column[indices]),
            _each(self.queues, lambda column: column[indices]),
            _each(self.raws, lambda column: column.take(pa.array(indices))),
            _each(self.emitters, lambda column: column[indices]),
            _each(self.targets, lambda column: column[indices]),
        )

    def repeat(self, counts: npt.NDArray[np.intp], values: list[Any]) -> Chunk:
        """Replace record *i* by ``counts[i]`` records that share all but the value with it."""
        return Chunk(
            _each(self.keys, lambda keys: _repeated(keys, counts)),
            values,
            np.repeat(self.times, counts),
            np.repeat(self.marks, counts),
            _each(self.headers, lambda headers: _repeated(headers, counts)),
            _each(self.late_below, lambda column: np.repeat(column, counts)),
            _each(self.retracts, lambda column: np.repeat(column, counts)),
            _each(self.queues, lambda column: np.repeat(column, counts)),
            None,
            _each(self.emitters, lambda column: np.repeat(column, counts)),
            _each(self.targets, lambda column: np.repeat(column, counts)),
        )

    @classmethod
    def merge(cls, chunks: Sequence[Chunk]) -> Chunk:
        """Join chunks into one in the order of the marks; equal marks keep their order."""
        full = [chunk for chunk in chunks if len(chunk)]
        if len(full) <= 1:
            return full[0] if full else cls.empty()
        joined = cls(
            None
            if all(chunk.keys is None for chunk in full)
            else _chained([chunk.key_list() for chunk in full]),
            _chained([chunk.values for chunk in full]),
            np.concatenate([chunk.times for chunk in full]),
            np.concatenate([chunk.marks for chunk in full]),
            None
            if all(chunk.headers is None for chunk in full)
            else list(chain.from_iterable(chunk.headers or [None] * len(chunk) for chunk in full)),
            _concatenated(full, [chunk.late_below for chunk in full], NEVER),
            _concatenated(full, [chunk.retracts for chunk in full], 0),
            _concatenated(full, [chunk.queues for chunk in full], 0),
            _all_raws(full),
            _concatenated(full, [chunk.emitters for chunk in full], 0),
            _concatenated(full, [chunk.targets for chunk in full], ANY_TASK),
        )
        if np.all(joined.marks[:-1] <= joined.marks[1:]):
            return joined
        return joined.take(np.argsort(joined.marks, kind="stable"))


def _each(column: _Column | None, change: Callable[[_Column], _Column]) -> _Column | None:
    return None if column is None else change(column)


def _picked(items: Any, indices: npt.NDArray[np.intp]) -> Any:
    if isinstance(items, ColumnValues):
        return items.take(indices)
    return [items[i] for i in indices.tolist()]


def _chained(lists: list[Any]) -> Any:
    columns = [one for one in lists if isinstance(one, ColumnValues)]
    if len(columns) == len(lists):
        return ColumnValues.concat(columns)
    return list(chain.from_iterable(lists))


def _concatenated(chunks: list[Chunk], columns: list[Any], default: object) -> Any:
    given = next((column for column in columns if column is not None), None)
    if given is None:
        return None
    return np.concatenate(
        [
            np.full(len(chunk), default, given.dtype) if column is None else column
            for chunk, column in zip(chunks, columns, strict=True)
        ]
    )


def _all_raws(chunks: list[Chunk]) -> pa.BinaryArray | None:
    columns = [chunk.raws for chunk in chunks]
    return None if any(raws is None for raws in columns) else pa.concat_arrays(columns)


def _repeated(items: list[Any], counts: npt.NDArray[np.intp]) -> list[Any]:
    return list(
        chain.from_iterable([item] * n for item, n in zip(items, counts.tolist(), strict=True))
    )


class NotedRecords:
    """Keeps of the records that were combined what their groups take from the last of each."""

    def __init__(self) -> None:
        self._noted: list[tuple[Int64s, Int64s, Int64s | None]] = []
        #: How many there are: the number of the next one.
        self.count = 0

    def add(self, chunk: Chunk) -> None:
        """Take note of records."""
        self._noted.append((chunk.times, chunk.marks, chunk.late_below))
        self.count += len(chunk)

    def of(self, numbers: Int64s) -> tuple[Int64s, Int64s, Int64s | None]:
        """Return times, marks and bounds of records by their numbers."""
        times, marks, bounds = zip(*self._noted, strict=True)
        late_below = None if bounds[0] is None else np.concatenate(bounds)[numbers]
        return np.concatenate(times)[numbers], np.concatenate(marks)[numbers], late_below
