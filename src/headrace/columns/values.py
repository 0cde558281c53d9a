"""Values of records as Arrow columns that become Python objects only where somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columns.schema import WIDE

Indices = npt.NDArray[np.intp]


class ColumnValues(Sequence[Any]):
    """Rows of Arrow columns, read like a list of Python values.

    Parameters
    ----------
    batch
        The columns.
    kind
        What a row is in Python: a dict, a tuple (of one column: the value itself), or what
        ``origin`` makes.
    origin
        Encoded values and their decoder, for rows that were read and not changed.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        kind: Literal["dict", "tuple"] = "dict",
        origin: tuple[pa.BinaryArray, Callable[[pa.BinaryArray], list[Any]]] | None = None,
        picks: Indices | None = None,
    ) -> None:
        self.batch = batch
        self.kind = kind
        self.origin = origin
        #: Which of the encoded values the rows are; None for all.
        self._picks = picks
        self._rows: list[Any] | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        return self.to_list()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.to_list() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.to_list())

    def to_list(self) -> list[Any]:
        """Return the Python values of all rows, which are made once."""
        if self._rows is None:
            self._rows = self._made()
        return self._rows

    def _made(self) -> list[Any]:
        if self.origin is not None:
            data, read = self.origin
            return read(data if self._picks is None else data.take(pa.array(self._picks)))
        columns = [python_values(column) for column in self.batch.columns]
        if self.kind == "tuple":
            return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        names = self.batch.schema.names
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def take(self, indices: Indices) -> ColumnValues:
        """Pick rows by index."""
        picks = indices if self._picks is None else self._picks[indices]
        batch = self.batch.take(pa.array(indices))
        return ColumnValues(batch, self.kind, self.origin, None if self.origin is None else picks)

    @classmethod
    def concat(cls, parts: Sequence[ColumnValues]) -> ColumnValues:
        """Join rows end to end; columns of one name have one kind, the widest."""
        tables = [pa.Table.from_batches([part.batch]) for part in parts]
        table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        origin = picks = None
        if all(part.origin is not None for part in parts):
            datas = [part.encoded() for part in parts]
            assert parts[0].origin is not None
            origin = (pa.concat_arrays(datas), parts[0].origin[1])
        arrays = [column.combine_chunks() for column in table.columns]
        batch = pa.RecordBatch.from_arrays(arrays, table.schema.names)
        return cls(batch, parts[0].kind, origin, picks)

    def encoded(self) -> pa.BinaryArray:
        """Return the encoded values of the rows, where they were read and not changed."""
        assert self.origin is not None
        data, _ = self.origin
        return data if self._picks is None else data.take(pa.array(self._picks))


def python_values(column: pa.Array) -> list[Any]:
    """Make Python values of a column; ints that did not fit 64 bits come back as ints.

    Examples
    --------
    >>> python_values(pa.array([2**70], pa.decimal256(76, 0)))
    [1180591620717411303424]
    """
    if pa.types.is_temporal(column.type):
        # Moments are slow to make, and often the same, as the bounds of windows are.
        coded = column.dictionary_encode()
        moments = [*coded.dictionary.to_pylist(), None]
        places = coded.indices.fill_null(len(moments) - 1).to_pylist()
        return list(map(moments.__getitem__, places))
    if pa.types.is_list(column.type) and column.type.value_type == WIDE:
        flat = iter(python_values(column.flatten()))
        return [own and [next(flat) for _ in own] for own in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    if column.type == WIDE:
        return [int(value) if isinstance(value, Decimal) else value for value in values]
    return values
