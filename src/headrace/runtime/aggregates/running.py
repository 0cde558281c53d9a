"""Running aggregates: combined before the shuffle where they can be, folded into state after it.

Every kind of aggregate is an algebra: how values become accumulators, how these merge, how they
are written.  Combiner and processor are the same for all kinds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.keys import decode_keys, encode_keys
from headrace.runtime.aggregates.algebra import ABSENT
from headrace.runtime.aggregates.algebras import algebra_of
from headrace.runtime.chunk import Chunk, NotedRecords, skip_keyless
from headrace.runtime.control import Rows
from headrace.runtime.processors import CombinedEdge, Edge, Processor, ProcessorContext, RecordEdge
from headrace.runtime.state.layouts import PlainLayout
from headrace.runtime.user_code import Locator, UserFunction, without_bad, writing
from headrace.topology.operators.core import Aggregate, Operator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.runtime.state.interface import StateStore
    from headrace.topology.aggregations import Aggregation


# Folding records into accumulators, with errors that name the record.


class Folder:
    """An aggregation at work in one operator.

    Parameters
    ----------
    operator
        Named in errors.
    aggregation
        What to do with the values.
    locator
        Tells where a record comes from, for errors of user functions.
    """

    def __init__(self, operator: Operator, aggregation: Aggregation, locator: Locator) -> None:
        self.algebra = algebra_of(aggregation)
        self._function = UserFunction(operator, aggregation.function or self.algebra.add, locator)

    def fold(self, accumulators: dict[Any, Any], keys: list[Any], chunk: Chunk) -> list[int]:
        """Add the values of a chunk, each to the accumulator of its key.

        Keys are whatever the holder tells accumulators apart by.  Return the indices of the records
        that the operator's policy took out.
        """
        if chunk.retracts is not None:
            return self._fold_updates(accumulators, keys, chunk)
        marks = chunk.marks.tolist()
        columns = iter(keys), iter(chunk.values), iter(marks)
        bad: list[int] = []
        while True:
            try:
                self.algebra.fold(accumulators, *columns)
            except Exception as error:  # noqa: BLE001 - user functions raise what they like
                bad.append(len(marks) - length_hint(columns[1]) - 1)
                self.take_out(error, marks[bad[-1]])
            else:
                return bad

    def _fold_updates(
        self, accumulators: dict[Any, Any], keys: list[Any], chunk: Chunk
    ) -> list[int]:
        """Add values and take values back; a key without values has no accumulator."""
        assert chunk.retracts is not None
        bad: list[int] = []
        add, remove = self.algebra.add, self.algebra.remove
        columns = keys, chunk.values, chunk.marks.tolist(), chunk.retracts.tolist()
        for index, (key, value, mark, back) in enumerate(zip(*columns, strict=True)):
            held = accumulators.get(key, ABSENT)
            try:
                new = remove(held, value) if back else add(held, value, mark)
            except Exception as error:  # noqa: BLE001 - user functions raise what they like
                bad.append(index)
                self.take_out(error, mark)
                continue
            if new is ABSENT:
                accumulators.pop(key, None)
            else:
                accumulators[key] = new
        return bad

    def take_out(self, error: Exception, mark: int) -> None:
        """Follow the operator's policy with a record that failed."""
        self._function.take_out(error, mark)

    def failure(self, error: Exception, mark: int) -> Exception:
        """Make the error that names the record with a mark."""
        return self._function.failure(error, mark)


#: Key types whose equality in a dict is the equality of their canonical encodings.
_PLAIN_KEY_TYPES = (str, bytes, int)


def combines(operator: Aggregate) -> bool:
    """Return whether records may be combined before they are shuffled."""
    return operator.emit == "update" and algebra_of(operator.aggregation).merges


@dataclass(slots=True)
class _Groups:
    """Accumulators by key, and where each key was seen last."""

    accumulators: dict[Any, Any] = field(default_factory=dict)
    last: dict[Any, int] = field(default_factory=dict)


class Combiner:
    """Combines the records of one task into one partial accumulator per key.

    Parameters
    ----------
    operator
        The aggregate that takes the partials.
    context
        Of the task that combines: places of records, counters.
    """

    def __init__(self, operator: Aggregate, context: ProcessorContext) -> None:
        self._operator = operator
        self._context = context
        self._folder = Folder(operator, operator.aggregation, context.locator)
        self._groups: dict[type | None, _Groups] = {}
        self._noted = NotedRecords()

    def add(self, chunk: Chunk) -> None:
        """Fold records in."""
        chunk = skip_keyless(chunk, self._context.counters, self._operator.name)
        if not len(chunk):
            return
        with writing(self._operator, "a key"):
            kind, keys = dict_keys(chunk.key_list())
        groups = self._groups.setdefault(kind, _Groups())
        self._folder.fold(groups.accumulators, keys, chunk)
        groups.last.update(zip(keys, count(self._noted.count), strict=False))
        self._noted.add(chunk)

    def flush(self) -> Rows | None:
        """Return what was combined, in the order in which keys were seen last."""
        if not self._noted.count:
            return None
        keys: list[bytes] = []
        accumulators: list[Any] = []
        last: list[int] = []
        for kind, groups in self._groups.items():
            keys += groups.accumulators if kind is None else encode_keys(list(groups.accumulators))
            accumulators += groups.accumulators.values()
            last += map(groups.last.__getitem__, groups.accumulators)
        places = np.array(last, np.intp)
        order = np.argsort(places)
        times, marks, late_below = self._noted.of(places)
        with writing(self._operator, "its partial results"):
            encoded = self._folder.algebra.encode(accumulators)
        rows = Rows(pa.array(keys, pa.binary()), encoded, times, marks, late_below=late_below)
        return rows.take(order)


def dict_keys(keys: list[Any]) -> tuple[type | None, list[Any]]:
    """Return keys that a dict tells apart as their canonical encodings do (1, 1.0, True differ)."""
    kinds = set(map(type, keys))
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in _PLAIN_KEY_TYPES:
            return kind, keys
    return None, encode_keys(keys)


class AggregateProcessor(Processor[Aggregate]):
    """Folds records or partials into the state of one partition.

    ``emit="update"`` returns the latest value of every key that changed, once per batch;
    ``emit="each"`` returns one result per record.
    """

    layout = PlainLayout()

    def __init__(self, operator: Aggregate, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._folder = Folder(operator, operator.aggregation, context.locator)
        self._algebra = self._folder.algebra
        self._retracts = context.retracts(operator)
        self._combiner = Combiner(operator, context) if combines(operator) else None
        self._chunks: list[Chunk] = []
        self._partials: list[Rows] = []

    @classmethod
    def edge(cls, operator: Aggregate, port: int, context: ProcessorContext) -> Edge:
        """Combine on the way where the kind of aggregate can."""
        if combines(operator):
            return CombinedEdge(Combiner(operator, context))
        if operator.aggregation.updates:
            return _UpdatesEdge(operator, port, context.locator)
        return super().edge(operator, port, context)

    def process(self, chunk: Chunk) -> Chunk:
        """Take records; results come at the end, or one by one where ``emit`` is each."""
        if self._combiner is not None:
            self._combiner.add(chunk)
            return Chunk.empty()
        chunk = skip_keyless(chunk, self.context.counters, self.operator.name)
        if self.operator.aggregation.updates:
            chunk = _without_gone(chunk)
        if self.operator.emit == "each":
            return self._fold_records(chunk, each=True)
        self._chunks.append(chunk)
        return Chunk.empty()

    def absorb(self, rows: Rows) -> None:
        """Take partials that a :class:`Combiner` made."""
        self._partials.append(rows)

    def finish(self) -> Chunk:
        """Fold what the batch brought into the state, and return what changed."""
        if self._combiner is not None:
            rest = self._combiner.flush()
            return self._merge_partials([*self._partials, *([rest] if rest is not None else [])])
        if not self._chunks:
            return Chunk.empty()
        return self._fold_records(Chunk.merge(self._chunks), each=False)

    def _merge_partials(self, parts: list[Rows]) -> Chunk:
        rows = Rows.join(parts)
        if not len(rows):
            return Chunk.empty()
        # In the order of the store: neighbours lie in the same blocks.
        changed, groups, places = rows.by_key()
        store = self.context.store(self.operator)
        held = self._algebra.decode_olds(store.get_many(changed))
        try:
            olds = self._old_results(changed, held)
            merged = self._algebra.merge_groups(
                rows.values, np.arange(len(rows)), groups, len(changed)
            )
            news = self._algebra.merge_into(held, merged)
            results = self._algebra.results(news)
        except Exception as error:
            # Which record it was is lost in the partials; the last one stands for them.
            raise self._folder.failure(error, int(rows.marks.max())) from error
        with writing(self.operator, "its state"):
            store.put_many(changed, self._algebra.encode(news).to_pylist())
        order = np.argsort(rows.marks[places], kind="stable")
        late_below = None if rows.late_below is None else rows.late_below[places]
        news_chunk = Chunk(
            decode_keys(changed),
            results,
            rows.times[places],
            rows.marks[places],
            late_below=late_below,
        )
        ordered = [changed[i] for i in order.tolist()] if olds else changed
        return _with_olds(news_chunk.take(order), ordered, olds)

    def _fold_records(self, chunk: Chunk, *, each: bool) -> Chunk:
        if not len(chunk):
            return chunk
        with writing(self.operator, "a key"):
            keys = encode_keys(chunk.key_list())
        store = self.context.store(self.operator)
        # In the order of the store: neighbours lie in the same blocks.
        distinct = sorted(set(keys))
        held = self._algebra.decode_olds(store.get_many(distinct))
        olds = self._old_results(distinct, held)
        accumulators = _present(distinct, held)
        results: list[Any] = []
        if each:
            bad = self._fold_each(accumulators, keys, chunk, results)
        else:
            bad = self._folder.fold(accumulators, keys, chunk)
        if bad:
            chunk = without_bad(chunk, bad)
            dropped = set(bad)
            keys = [key for index, key in enumerate(keys) if index not in dropped]
            distinct = sorted(set(keys))
        self._write(store, distinct, accumulators)
        if each:
            return chunk.with_values(results)
        last = dict(zip(keys, range(len(keys)), strict=True))
        places = np.sort(np.fromiter(last.values(), np.intp, len(last)))
        return self._changed(
            chunk.take(places), [keys[i] for i in places.tolist()], accumulators, olds
        )

    def _write(self, store: StateStore, keys: list[bytes], accumulators: dict[bytes, Any]) -> None:
        gone = [key for key in keys if key not in accumulators]
        kept = [key for key in keys if key in accumulators] if gone else keys
        with writing(self.operator, "its state"):
            encoded = self._algebra.encode([accumulators[key] for key in kept])
        store.put_many(kept, encoded.to_pylist())
        store.put_many(gone, [None] * len(gone))

    def _changed(
        self,
        chunk: Chunk,
        keys: list[bytes],
        accumulators: dict[bytes, Any],
        olds: dict[bytes, Any],
    ) -> Chunk:
        """Return the results of keys; None for one whose last value was taken back."""
        if self.operator.aggregation.updates:
            chunk = replace(chunk, retracts=None)
            result = self._algebra.result
            values = [result(accumulators[key]) if key in accumulators else None for key in keys]
        else:
            values = self._algebra.results([accumulators[key] for key in keys])
        return _with_olds(chunk.with_values(values), keys, olds)

    def _old_results(self, keys: list[bytes], held: list[Any]) -> dict[bytes, Any]:
        """Return what was said of keys before, where somebody must take it back."""
        if not self._retracts:
            return {}
        snapshot = self._algebra.snapshot
        return {key: snapshot(held) for key, held in _present(keys, held).items()}

    def _fold_each(
        self, accumulators: dict[Any, Any], keys: list[Any], chunk: Chunk, results: list[Any]
    ) -> list[int]:
        """Fold records, note each result, and return the indices of those that were taken out."""
        bad: list[int] = []
        add, snapshot = self._algebra.add, self._algebra.snapshot
        rows = zip(keys, chunk.values, chunk.marks.tolist(), strict=True)
        while True:
            try:
                for key, value, mark in rows:
                    new = add(accumulators.get(key, ABSENT), value, mark)
                    results.append(snapshot(new))
                    accumulators[key] = new
            except Exception as error:  # noqa: BLE001 - user functions raise what they like
                bad.append(len(results) + len(bad))
                self._folder.take_out(error, int(chunk.marks[bad[-1]]))
            else:
                return bad


class _UpdatesEdge(RecordEdge):
    def add(self, chunk: Chunk) -> None:
        super().add(_without_gone(chunk))


def _without_gone(chunk: Chunk) -> Chunk:
    """Leave out updates to None: their keys have no value any more."""
    live = [index for index, value in enumerate(chunk.values) if value is not None]
    return chunk if len(live) == len(chunk) else chunk.take(np.array(live, np.intp))


def _with_olds(chunk: Chunk, keys: list[bytes], olds: dict[bytes, Any]) -> Chunk:
    """Put the old value of a key before its new one, to be taken back."""
    if not olds:
        return chunk
    had = np.fromiter((key in olds for key in keys), np.bool_, len(keys))
    values: list[Any] = []
    for key, new in zip(keys, chunk.values, strict=True):
        values += (olds[key], new) if key in olds else (new,)
    counts = np.where(had, 2, 1)
    retracts = np.zeros(len(values), np.bool_)
    retracts[(np.cumsum(counts) - counts)[had]] = True
    return replace(chunk.repeat(counts, values), retracts=retracts)


def _present(keys: list[bytes], accumulators: Iterable[Any]) -> dict[bytes, Any]:
    pairs = zip(keys, accumulators, strict=True)
    return {key: accumulator for key, accumulator in pairs if accumulator is not ABSENT}
