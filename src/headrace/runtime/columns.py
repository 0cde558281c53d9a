"""Processors of the operators over columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.columns import ColumnValues
from headrace.columns.aggregates import (
    ColumnMeasure,
    Partials,
    group,
    merge_cells,
    negated,
    regroup,
)
from headrace.columns.functions import evaluate, exploded, filtered
from headrace.columns.schema import Schema, column_of
from headrace.columns.values import python_values
from headrace.errors import HeadraceError, UserCodeError
from headrace.keys import decode_keys, encode_keys
from headrace.runtime.chunk import Chunk, NotedRecords
from headrace.runtime.control import Rows
from headrace.runtime.processors import CombinedEdge, Edge, Processor, ProcessorContext
from headrace.runtime.state.layouts import PlainLayout
from headrace.runtime.user_code import Locator, without_bad, writing
from headrace.topology import add_numbers
from headrace.topology.operators.columns import (
    AggregateColumns,
    GroupBy,
    Select,
    WhereColumns,
    WindowRows,
)
from headrace.topology.windowed import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.runtime.state.interface import StateStore
    from headrace.topology.operators.core import Operator


T = TypeVar("T")


def batch_of(values: list[Any], schema: Schema) -> pa.RecordBatch:
    """Return the columns of values, made from Python objects where they are not columns yet."""
    if isinstance(values, ColumnValues):
        return values.batch
    return schema.batch(values)


def without_gone(chunk: Chunk) -> Chunk:
    """Leave out updates to None: their keys have no value any more."""
    if isinstance(chunk.values, ColumnValues) or None not in chunk.values:
        return chunk
    live = [index for index, value in enumerate(chunk.values) if value is not None]
    return chunk.take(np.array(live, np.intp))


def by_columns(
    operator: Operator,
    schema: Schema,
    locator: Locator,
    chunk: Chunk,
    compute: Callable[[Chunk, pa.RecordBatch], T],
) -> tuple[Chunk, T]:
    """Compute something from a chunk's columns; return the records that are left, and the result.

    Where a value cannot be computed, such as text that is not a number, the policy decides:
    an error names the record that it comes from, or the records that fail are taken out.

    Raises
    ------
    UserCodeError
        A record fails, and the operator's policy is to stop.
    """

    def run(part: Chunk) -> T:
        return compute(part, batch_of(part.values, schema))

    try:
        return chunk, run(chunk)
    except Exception as error:
        if not len(chunk):
            raise
        passes = isinstance(error, HeadraceError) and error.retriable
        found = _culprits(chunk, run, error)
        if operator.on_error == "fail" or passes:
            place, reason = next(found, (0, error))
            raise _failure(operator, locator, int(chunk.marks[place]), reason) from error
        bad = []
        for place, reason in found:
            locator.divert(operator, int(chunk.marks[place]), reason, None)
            bad.append(place)
    kept = without_bad(chunk, bad)
    try:
        return kept, run(kept)
    except Exception as error:
        raise _failure(operator, locator, int(chunk.marks[0]), error) from error


def _failure(operator: Operator, locator: Locator, mark: int, reason: Exception) -> Exception:
    if isinstance(reason, HeadraceError):
        return reason
    return UserCodeError(
        f"operator '{operator.name}' failed on the record at {locator.locate(mark)}:"
        f" {type(reason).__name__}: {reason}",
        hint=f"the operator was made at {operator.origin}; nothing of this batch was committed:"
        " correct the expression and start again, or give the operator"
        ' on_error="skip" or on_error="topic:NAME" to go on without such records',
    )


def _culprits(
    chunk: Chunk, run: Callable[[Chunk], object], error: Exception
) -> Iterator[tuple[int, Exception]]:
    """Yield the records that fail alone, found by halving: their places and errors, in order."""
    waiting = [(0, len(chunk), error)] if len(chunk) else []
    while waiting:
        low, high, reason = waiting.pop()
        if high - low == 1:
            yield low, reason
            continue
        middle = (low + high) // 2
        halves = []
        for start, stop in ((middle, high), (low, middle)):
            try:
                run(chunk.take(np.arange(start, stop)))
            except Exception as found:  # noqa: BLE001 - whatever it is, it is what is looked for
                halves.append((start, stop, found))
        waiting += halves


class SelectProcessor(Processor[Select]):
    """Computes columns."""

    def process(self, chunk: Chunk) -> Chunk:
        """Compute the columns."""
        columns = self.operator.columns
        chunk, (batch, rows) = by_columns(
            self.operator,
            self.operator.schema,
            self.context.locator,
            without_gone(chunk),
            lambda _, batch: exploded(columns, batch),
        )
        values: Any = ColumnValues(batch)
        if rows is None:
            return chunk.with_values(values)
        nothing: Any = ColumnValues(_no_columns(len(chunk)))
        return chunk.with_values(nothing).take(rows.to_numpy()).with_values(values)


def _no_columns(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["nothing"])


class WhereColumnsProcessor(Processor[WhereColumns]):
    """Keeps some records."""

    def process(self, chunk: Chunk) -> Chunk:
        """Keep what fits."""
        chunk, kept = by_columns(
            self.operator,
            self.operator.schema,
            self.context.locator,
            without_gone(chunk),
            lambda _, batch: filtered(self.operator.condition, batch),
        )
        if len(kept) == len(chunk):
            return chunk
        return chunk.take(kept.to_numpy().astype(np.intp, copy=False))


class GroupByProcessor(Processor[GroupBy]):
    """Sets keys that stay columns until somebody looks at one."""

    def process(self, chunk: Chunk) -> Chunk:
        """Set the keys."""
        columns = self.operator.columns
        chunk, arrays = by_columns(
            self.operator,
            self.operator.schema,
            self.context.locator,
            without_gone(chunk),
            lambda _, batch: [evaluate(node, batch) for _, node in columns],
        )
        batch = pa.RecordBatch.from_arrays(arrays, [name for name, _ in columns])
        keys: Any = ColumnValues(batch, "tuple")
        return chunk.with_keys(keys)


class WindowRowsProcessor(Processor[WindowRows]):
    """Makes columns of results of windows, whose bounds travel as headers."""

    def process(self, chunk: Chunk) -> Chunk:
        """Handle results of a window operator, which all have the headers."""
        operator = self.operator
        keys = chunk.key_list()
        lists = [keys] if len(operator.keys) == 1 else list(map(list, zip(*keys, strict=True)))
        measures = operator.results.names[len(operator.keys) : -2]
        lists += [[value[name] for value in chunk.values] for name in measures]
        headers = [own or {} for own in chunk.headers or []]
        lists += [[int(own[bound]) for own in headers] for bound in (WINDOW_START, WINDOW_END)]
        kinds = [kind for _, kind in operator.results.columns]
        columns = [column_of(values, kind) for values, kind in zip(lists, kinds, strict=True)]
        values: Any = ColumnValues(pa.RecordBatch.from_arrays(columns, operator.results.names))
        return chunk.with_values(values)


# Aggregates over columns: groups combined in Arrow before the shuffle, merged into state after it.

#: So many groups may wait before they are combined with each other.
_WAITING_GROUPS = 1 << 18


class CellGroups:
    """Rows of cells, one per group, of the records that were combined so far.

    Parameters
    ----------
    measures
        What is measured of each group.
    kinds
        Of the columns of a key.
    """

    def __init__(self, measures: Sequence[ColumnMeasure], kinds: Sequence[pa.DataType]) -> None:
        self._measures, self._kinds = measures, kinds
        self._ways = [way for measure in measures for way in measure.cells]
        self._parts: list[Partials] = []
        self.noted = NotedRecords()

    def grouped(self, keys: list[Any], batch: pa.RecordBatch, *before: pa.Array) -> Partials:
        """Combine records by their keys, behind columns that stand before those."""
        if isinstance(keys, ColumnValues):
            columns = keys.batch.columns
        else:
            lists = [keys] if len(self._kinds) == 1 else map(list, zip(*keys, strict=True))
            columns = list(map(column_of, lists, self._kinds))
        return group([*before, *columns], self._measures, batch, self.noted.count)

    def add(self, chunk: Chunk, cells: Partials, *, takes_back: bool = False) -> None:
        """Take records, and what they were combined into."""
        self._parts.append(negated(cells, self._ways) if takes_back else cells)
        self.noted.add(chunk)
        if len(self._parts) > 1 and sum(map(len, self._parts)) > _WAITING_GROUPS:
            self._parts = [regroup(self._parts, self._ways)]

    def take(self) -> Partials:
        """Return the rows, one of each group, and begin again."""
        parts, self._parts = self._parts, []
        return regroup(parts, self._ways)


class ColumnCombiner:
    """Combines the records of one task into one row of cells per group.

    Parameters
    ----------
    operator
        The aggregate that takes the rows.
    locator
        Tells where a record comes from, for errors.
    """

    def __init__(self, operator: AggregateColumns, locator: Locator) -> None:
        self._operator = operator
        self._locator = locator
        columns = operator.results.columns[: len(operator.keys)]
        self._groups = CellGroups(operator.measures, [kind for _, kind in columns])

    def add(self, chunk: Chunk) -> None:
        """Take records."""
        chunk = without_gone(chunk)
        if chunk.retracts is None or not chunk.retracts.any():
            self._add(chunk, takes_back=False)
            return
        back, kept = chunk.split(chunk.retracts)
        self._add(kept, takes_back=False)
        self._add(back, takes_back=True)

    def _add(self, chunk: Chunk, *, takes_back: bool) -> None:
        if not len(chunk):
            return
        operator = self._operator
        chunk, cells = by_columns(
            operator,
            operator.schema,
            self._locator,
            chunk,
            lambda part, batch: self._groups.grouped(part.key_list(), batch),
        )
        self._groups.add(chunk, cells, takes_back=takes_back)

    def flush(self) -> Rows | None:
        """Return what was combined, in the order in which groups were seen last."""
        if not self._groups.noted.count:
            return None
        cells = self._groups.take()
        order = np.argsort(cells.last.to_numpy())
        places = cells.last.to_numpy()[order]
        picks = pa.array(order)
        with writing(self._operator, "a key"):
            keys = encode_keys(_keys_of([column.take(picks) for column in cells.keys]))
        lists = [python_values(column.take(picks)) for column in cells.cells]
        values = self._operator.state_serde.serialize_many(list(zip(*lists, strict=True)))
        times, marks, late_below = self._groups.noted.of(places)
        return Rows(pa.array(keys, pa.binary()), values, times, marks, late_below=late_below)


def _keys_of(columns: list[pa.Array]) -> list[Any]:
    lists = [python_values(column) for column in columns]
    return lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))


class AggregateColumnsProcessor(Processor[AggregateColumns]):
    """Merges combined rows into the state of one partition, and returns what changed per batch."""

    layout = PlainLayout()

    def __init__(self, operator: AggregateColumns, context: ProcessorContext) -> None:
        super().__init__(operator, context)
        self._combiner = ColumnCombiner(operator, context.locator)
        ways = [way for measure in operator.measures for way in measure.cells]
        self._merge = merge_cells(ways, add_numbers)
        self._partials: list[Rows] = []
        self._retracts = context.retracts(operator)

    @classmethod
    def edge(cls, operator: AggregateColumns, port: int, context: ProcessorContext) -> Edge:
        """Combine on the way."""
        del port
        return CombinedEdge(ColumnCombiner(operator, context.locator))

    def process(self, chunk: Chunk) -> Chunk:
        """Take records that no shuffle brought; results come at the end."""
        self._combiner.add(chunk)
        return Chunk.empty()

    def absorb(self, rows: Rows) -> None:
        """Take what a :class:`ColumnCombiner` made."""
        self._partials.append(rows)

    def finish(self) -> Chunk:
        """Merge what the batch brought into the state, and return what changed."""
        rest = self._combiner.flush()
        rows = Rows.join([*self._partials, *([rest] if rest else [])])
        return self._merged(rows) if len(rows) else Chunk.empty()

    def _merged(self, rows: Rows) -> Chunk:
        serde, merge = self.operator.state_serde, self._merge
        keys, groups, places = rows.by_key()
        merged: list[Any] = [None] * len(keys)
        for place, cells in zip(groups.tolist(), serde.deserialize_many(rows.values), strict=True):
            before = merged[place]
            merged[place] = cells if before is None else merge(before, cells)
        order = np.lexsort((places, rows.marks[places]))
        places = places[order]
        changed = [keys[place] for place in order.tolist()]
        merged = [merged[place] for place in order.tolist()]
        store = self.context.store(self.operator)
        held = [old and serde.deserialize(old) for old in store.get_many(changed)]
        news = [
            new if old is None else merge(old, new) for old, new in zip(held, merged, strict=True)
        ]
        self._write(store, changed, news)
        late_below = None if rows.late_below is None else rows.late_below[places]
        chunk = Chunk(
            decode_keys(changed), [], rows.times[places], rows.marks[places], late_below=late_below
        )
        return self._told(chunk, held, news)

    def _write(self, store: StateStore, keys: list[bytes], news: list[tuple[Any, ...]]) -> None:
        with writing(self.operator, "its state"):
            encoded: list[bytes | None] = self.operator.state_serde.serialize_many(news).to_pylist()
        if self.operator.of_updates:
            encoded = [
                data if cells[-1] else None for data, cells in zip(encoded, news, strict=True)
            ]
        store.put_many(keys, encoded)

    def _told(self, chunk: Chunk, held: list[Any], news: list[tuple[Any, ...]]) -> Chunk:
        """Return the results of groups, and before them what they replace, where that is needed."""
        keys = chunk.key_list()
        values: Any = ColumnValues(self._results(keys, news))
        if self.operator.of_updates and not all(cells[-1] for cells in news):
            rows = zip(values, news, strict=True)
            values = [value if cells[-1] else None for value, cells in rows]
        told = chunk.with_values(values)
        had = [place for place, cells in enumerate(held) if cells is not None]
        if not self._retracts or not had:
            return told
        old: Any = ColumnValues(
            self._results([keys[place] for place in had], [held[place] for place in had])
        )
        nothing: list[Any] = [None] * len(keys)
        before = chunk.with_values(nothing).take(np.array(had, np.intp)).with_values(old)
        before.retracts = np.ones(len(before), np.bool_)
        return Chunk.merge([before, told])

    def _results(self, keys: list[Any], news: list[tuple[Any, ...]]) -> pa.RecordBatch:
        operator = self.operator
        lists = [keys] if len(operator.keys) == 1 else list(map(list, zip(*keys, strict=True)))
        cells = list(zip(*news, strict=True))
        at = 0
        for measure in operator.shown:
            own = cells[at : at + len(measure.cells)]
            at += len(measure.cells)
            is_plain = len(own) == 1 and measure.kind != "count_distinct"
            results = own[0] if is_plain else map(measure.result, zip(*own, strict=True))
            lists.append(list(results))
        columns = [
            column_of(values, kind)
            for values, (_, kind) in zip(lists, operator.results.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, operator.results.names)


#: The operators over columns, and what runs them.
COLUMNS: dict[type[Operator], type[Processor[Any]]] = {
    AggregateColumns: AggregateColumnsProcessor,
    GroupBy: GroupByProcessor,
    Select: SelectProcessor,
    WhereColumns: WhereColumnsProcessor,
    WindowRows: WindowRowsProcessor,
}
