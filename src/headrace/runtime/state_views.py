"""Looking into the state of a job, from any process, as of its last commit."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import StateError
from headrace.keys import encode_key, partition_of
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.state_layouts import PlainLayout
from headrace.runtime.state_values import reader

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from headrace.protocol.transactions import CommitRecord
    from headrace.runtime.local_state import LocalCopies
    from headrace.runtime.state import StateBase
    from headrace.runtime.state_home import StateHome
    from headrace.runtime.state_layouts import StateEntry
    from headrace.topology import Operator

__all__ = ["StateView"]

#: Keys whose canonical bytes are in the order of the keys.
_ORDERED = (str, bytes)


class StateView:
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
        self._layout = ((None if kind is None else kind.layout) or PlainLayout()).of(shape)
        self._read = reader(known, shape)
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-view-")
        self._copies: LocalCopies = home.copies([operator], Path(self._folder.name))

    def get(self, key: object) -> Any:
        """Give the value of a key; None where there is none.

        Of a key with windows, the value of its latest window; of an operator that keeps several
        things for a key, such as both sides of a join or the states of a processor, a dict of
        them.
        """
        return self._layout.gathered(sorted(self._of(key), key=lambda entry: entry.start or 0))

    def range(self, start: object = None, stop: object = None) -> Iterator[tuple[Any, Any]]:
        """Give keys from ``start`` to before ``stop`` with their values, in the order of the keys.

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

    def prefix(self, prefix: str | bytes) -> Iterator[tuple[Any, Any]]:
        """Give the keys that begin with a text, or with bytes, with their values, in order."""
        kind, size = type(prefix), len(prefix)
        found = [
            (entry.key, entry.value)
            for entry in self._between(prefix, None)
            if type(entry.key) is kind and entry.key[:size] == prefix
        ]
        return iter(sorted(found, key=_order))

    def window(
        self, key: object, start: datetime, stop: datetime
    ) -> Iterator[tuple[int, int, Any]]:
        """Give the open windows of a key that touch a span of time, oldest first.

        Each as its bounds, in ms since 1970, and its value.
        """
        begin, end = round(start.timestamp() * 1000), round(stop.timestamp() * 1000)
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
        """Give every entry, partition by partition."""
        with closing(self.raw()) as raw:
            for key, value in raw:
                yield from self._layout.shown(key, value, self._read)

    def raw(self) -> Generator[tuple[bytes, bytes], None, None]:
        """Give every entry as its bytes, also those that only the operator needs."""
        with self._bases() as bases:
            for base in bases:
                yield from base.scan()

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

    @contextmanager
    def _bases(self, key: bytes | None = None) -> Iterator[list[StateBase]]:
        """Open the partitions as of the last commit: all, or the one of a key."""
        record = self._home.record()
        wanted = None if key is None else partition_of(key, record.partitions)
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
        copy = self._copies.open(self.name, partition, summary, record.lineage)
        opened.callback(copy.close)
        return copy.base


def _order(pair: tuple[Any, Any]) -> Any:
    """Order keys by type, then by value where values have an order, else by their bytes."""
    key = pair[0]
    kind = type(key)
    if kind in (int, float, str, bytes):
        return (kind.__name__, key)
    return (kind.__name__, encode_key(key))
