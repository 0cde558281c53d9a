"""Committed batches, as functions and writers outside the transaction get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from headrace.topology.low_level import Record

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchRecords", "BatchToken"]

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, order=True)
class BatchToken:
    """Names one committed batch of a job: the same records come with the same token, always.

    A batch may be handed over more than once.  Who keeps the token with what it writes, or names
    a folder after it, can tell.

    Examples
    --------
    >>> token = BatchToken("orders", 7)
    >>> str(token), token == BatchToken("orders", 7)
    ('orders-7', True)
    """

    job: str
    batch: int

    def __str__(self) -> str:
        return f"{self.job}-{self.batch}"


class BatchRecords(Sequence[Record[K, V]], Generic[K, V]):
    """The records that one sink got in one batch, in the order of its queues.

    Parameters
    ----------
    count
        How many there are.
    records
        Reads them as records; called once, when somebody looks.
    table
        Reads them as columns.
    """

    def __init__(
        self,
        count: int,
        records: Callable[[], list[Record[Any, Any]]],
        table: Callable[[], pa.Table],
    ) -> None:
        self._count = count
        self._read = records
        self._table = table
        self._records: list[Record[K, V]] | None = None

    def to_arrow(self) -> pa.Table:
        """Give them as columns: key, value, time, headers, broker, queue, offset.

        No Python object is made for a record where the values have a schema of columns.
        """
        return self._table()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record[K, V]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record[K, V]]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[Record[K, V]]:
        return iter(self._all())

    def __repr__(self) -> str:
        return f"<{self._count} records of a batch>"

    def _all(self) -> list[Record[K, V]]:
        if self._records is None:
            self._records = self._read()
        return self._records
