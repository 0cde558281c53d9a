"""Looking into the state of a job, from any process, as of its last commit."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import pyarrow as pa

from headrace import serdes
from headrace.columns.aggregates import CellsOf
from headrace.errors import DeserializationError, SerializationError, StateError
from headrace.keys import encode_key
from headrace.runtime.aggregates.algebras import algebra_of
from headrace.runtime.low_level.cells import milliseconds
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state.layouts import PlainLayout, Read, StateEntry, StateLayout
from headrace.topology.operators.columns import AggregateColumns
from headrace.topology.shapes import state_serdes

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.state.home import StateHome
    from headrace.runtime.state.local import LocalCopies
    from headrace.runtime.state.store import StateBase
    from headrace.topology import Operator


# Questions to the state of one operator, wherever its entries lie.

K = TypeVar("K")
V = TypeVar("V")

#: Keys whose canonical bytes are in the order of the keys.
_ORDERED = (str, bytes)


class StateView(ABC, Generic[K, V]):
    """What can be asked of the state of one operator: of a job that runs, or of a test driver.

    Parameters
    ----------
    layout
        How the operator lays out its store.
    read
        Turns the bytes of a value into what it says.
    """

    def __init__(self, layout: StateLayout, read: Read) -> None:
        self._layout = layout
        self._read = read

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of entries."""

    @abstractmethod
    def _bases(self, key: bytes | None = None) -> AbstractContextManager[list[StateBase]]:
        """Open the partitions: all, or the one of a key."""

    def get(self, key: K) -> V | None:
        """Return the value of a key; None where there is none.

        Of a key with windows, the value of its latest window; of an operator that keeps several
        things for a key, such as both sides of a join or the states of a processor, a dict of
        them.
        """
        entries = sorted(self._of(key), key=lambda entry: entry.start or 0)
        found: V | None = self._layout.gathered(entries)
        return found

    def all(self) -> Mapping[K, V]:
        """Return every key with what :meth:`get` returns for it.

        Keys are told apart as those of records are: dicts and lists are keys, too, and 1, 1.0 and
        True are three.
        """
        entries: dict[bytes, list[StateEntry]] = {}
        for entry in sorted(self.scan(), key=lambda entry: entry.start or 0):
            entries.setdefault(encode_key(entry.key), []).append(entry)
        gathered = self._layout.gathered
        return _ByKey({key: (own[0].key, gathered(own)) for key, own in entries.items()})

    def range(self, start: K | None = None, stop: K | None = None) -> Iterator[tuple[K, V]]:
        """Return keys from ``start`` to before ``stop`` with their values, in the order of the keys.

        A bound that is None is open; keys of another type than the bounds are left out.  Bounds
        of text or bytes cost by what they give, others by the whole store.
        """
        bounds = [bound for bound in (start, stop) if bound is not None]
        kinds = {type(bound) for bound in bounds}
        found = [
            (entry.key, entry.value)
            for entry in self._between(start, stop)
            if (not kinds or type(entry.key) in kinds)
            and (start is None or entry.key >= start)
            and (stop is None or entry.key < stop)
        ]
        return iter(sorted(found, key=_order))

    def prefix(self, prefix: str | bytes) -> Iterator[tuple[K, V]]:
        """Return the keys that begin with a text, or with bytes, with their values, in order."""
        kind, size = type(prefix), len(prefix)
        found: list[tuple[Any, Any]] = [
            (entry.key, entry.value)
            for entry in self._between(prefix, None)
            if type(entry.key) is kind and entry.key[:size] == prefix
        ]
        return iter(sorted(found, key=_order))

    def window(self, key: K, start: datetime, stop: datetime) -> Iterator[tuple[int, int, V]]:
        """Return the open windows of a key that touch a span of time, oldest first.

        Each as its bounds, in ms since 1970, and its value.
        """
        begin, end = milliseconds(start), milliseconds(stop)
        found = [
            (entry.start, entry.end, entry.value)
            for entry in self._of(key)
            if entry.start is not None
            and entry.end is not None
            and entry.start < end
            and entry.end > begin
        ]
        return iter(sorted(found, key=lambda each: each[:2]))

    def scan(self) -> Generator[StateEntry, None, None]:
        """Yield every entry, partition by partition."""
        with closing(self.raw()) as raw:
            for key, value in raw:
                yield from self._layout.shown(key, value, self._read)

    def raw(self) -> Generator[tuple[bytes, bytes], None, None]:
        """Yield every entry as its bytes, also those that only the operator needs."""
        with self._bases() as bases:
            for base in bases:
                yield from base.scan()

    def _of(self, key: object) -> Iterator[StateEntry]:
        encoded = encode_key(key)
        with self._bases(encoded) as bases:
            for base in bases:
                yield from self._entries_of(base, encoded)

    def _entries_of(self, base: StateBase, key: bytes) -> Iterator[StateEntry]:
        spans = self._layout.spans(key)
        found = (
            (pair for pair in base.scan() if self._layout.key_of(pair[0]) == key)
            if spans is None
            else (pair for span in spans for pair in base.range(*span))
        )
        for entry, value in found:
            yield from self._layout.shown(entry, value, self._read)

    def _between(self, start: object, stop: object) -> Iterator[StateEntry]:
        bound = start if start is not None else stop
        if not self._layout.plain or not isinstance(bound, _ORDERED):
            yield from self.scan()
            return
        # The tag of the type is the first byte: the next one ends what can be of this type.
        tag = encode_key(bound)[:1]
        first = tag if start is None else encode_key(start)
        last = bytes([tag[0] + 1]) if stop is None else encode_key(stop)
        if first >= last:
            return
        with self._bases() as bases:
            for base in bases:
                for key, value in base.range(first, last):
                    yield from self._layout.shown(key, value, self._read)


class _ByKey(Mapping[Any, Any]):
    """What is found under keys, which may be all that records have; reads like a dict.

    Parameters
    ----------
    items
        Key and value by the canonical bytes of the key.

    Examples
    --------
    >>> found = _ByKey({encode_key(key): (key, None) for key in (1, 1.0, {"a": 1})})
    >>> found, 1.0 in found, True in found
    ({1: None, 1.0: None, {'a': 1}: None}, True, False)
    """

    def __init__(self, items: Mapping[bytes, tuple[Any, Any]]) -> None:
        self._items = items

    def __getitem__(self, key: object) -> Any:
        try:
            return self._items[encode_key(key)][1]
        except (KeyError, SerializationError):
            raise KeyError(key) from None

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return len(self) == len(other) and all(
            key in self and self[key] == value for key, value in other.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: {value!r}" for key, value in self._items.values()) + "}"


def _order(pair: tuple[Any, Any]) -> Any:
    """Order keys by type, then by value where values have an order, else by their bytes."""
    key = pair[0]
    kind = type(key)
    if kind in (int, float, str, bytes):
        return (kind.__name__, key)
    return (kind.__name__, encode_key(key))


# What the bytes of state say: read by the operator, by a serde of ours, else not at all.

_PLAIN = (serdes.bytes, serdes.string, serdes.int, serdes.float, serdes.json, serdes.plain)
#: Serdes that a commit record can name; nothing else is looked up by a name that was read.
_KNOWN = {repr(serde): serde for each in _PLAIN for serde in (each, serdes.nullable(each))}
# Of states of spouts and bolts only what is plain: a pickle that somebody wrote is not opened.
_KNOWN[repr(serdes.state)] = serdes.plain


def reader(known: Operator | None, shape: Mapping[str, str]) -> Read:
    """Choose how the values of a store are read.

    Parameters
    ----------
    known
        The operator, where the program is at hand.
    shape
        What the commit record says of the store.
    """
    own = {} if known is None else state_serdes(known)
    results = None if known is None else _results(known)

    def read(value: bytes, part: str) -> Any:
        if results is not None:
            return results(value)
        # A serde may be shown by the name of the one inside it.
        shown = _KNOWN.get(shape.get(part or "state", ""), serdes.bytes)
        try:
            return own.get(part or "state", shown).deserialize(value)
        except DeserializationError:
            return value

    return read


def _results(known: Operator) -> Callable[[bytes], Any] | None:
    """Return what turns the state of an aggregate into its result."""
    aggregation = getattr(known, "aggregation", None)
    if aggregation is not None:
        algebra = algebra_of(aggregation)
        return lambda value: algebra.result(*algebra.decode(pa.array([value], pa.binary())))
    if isinstance(known, AggregateColumns):
        result, serde = CellsOf(known.schema, known.shown, ()).result, known.state_serde
        return lambda value: result(serde.deserialize(value))
    return None


class CommittedState(StateView[Any, Any]):
    """The state of one operator, to look at: nothing here changes it.

    Each call sees the last commit; the job may run meanwhile, on any machine.  State topics are
    read into copies that belong to the view: the first look at a partition replays its queue,
    later ones read what is new.

    Parameters
    ----------
    home
        The job's cluster.
    operator
        Name of the operator.
    known
        The operator itself, where the program is at hand: its serdes read the values.

    Raises
    ------
    StateError
        The job has committed nothing, or has no state of this name.
    """

    def __init__(self, home: StateHome, operator: str, known: Operator | None = None) -> None:
        self.name = operator
        self._home = home
        record = home.record()
        names = sorted({state.store for state in record.states} | set(record.stores))
        if operator not in names:
            raise StateError(
                f"job '{home.job}' has no state of an operator '{operator}'",
                hint=f"it has state of {', '.join(names) or 'none'}",
            )
        shape = record.shapes.get(operator, {})
        kinds = {kind.__name__: processor for kind, processor in PROCESSORS.items()}
        kind = kinds.get(shape.get("operator", ""))
        layout = ((None if kind is None else kind.layout) or PlainLayout()).of(shape)
        super().__init__(layout, reader(known, shape))
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-view-")
        self._partitions = 0
        self._copies: LocalCopies | None = None

    def __len__(self) -> int:
        record = self._home.record()
        return sum(
            state.count
            for state in record.states
            if state.store == self.name and not (self._layout.everywhere and state.partition)
        )

    def close(self) -> None:
        """Delete the view's copies."""
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _bases(self, key: bytes | None = None) -> Iterator[list[StateBase]]:
        """Open the partitions as of the last commit."""
        record = self._home.published_record()
        wanted = None if key is None else self._layout.place(key, record.partitions)
        if self._layout.everywhere:
            wanted = 0
        with ExitStack() as opened:
            yield [
                self._open(opened, record, number)
                for number in range(record.partitions)
                if wanted in (None, number)
            ]

    def _open(self, opened: ExitStack, record: CommitRecord, partition: int) -> StateBase:
        summary = next(
            (s for s in record.states if (s.store, s.partition) == (self.name, partition)), None
        )
        if self._copies is None or self._partitions != record.partitions:
            # A job that was rescaled since may have queues that were not there.
            self._copies = self._home.copies([self.name], Path(self._folder.name))
            self._partitions = record.partitions
        copy = self._copies.open(self.name, partition, summary, record.lineage)
        opened.callback(copy.close)
        return copy.base
