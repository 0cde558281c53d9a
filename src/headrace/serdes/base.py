"""What a serde is: values of one type to bytes and back, one at a time or many at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from headrace.columns.schema import Schema

__all__ = ["Serde", "wrong_type"]

T = TypeVar("T")


class Serde(ABC, Generic[T]):
    """Writes values of one type as bytes and reads them back.

    A subclass gives :meth:`serialize` and :meth:`deserialize`; the forms for many values call
    these unless it knows a faster way.  Any exception they raise names a bad value; the caller
    adds where it came from.

    Examples
    --------
    >>> class Celsius(Serde[float]):
    ...     name = "celsius"
    ...
    ...     def serialize(self, value: float) -> bytes:
    ...         return f"{value:.1f}".encode()
    ...
    ...     def deserialize(self, data: bytes) -> float:
    ...         return float(data)
    >>> Celsius().serialize(21.04)
    b'21.0'
    """

    #: Shown by ``describe()``.
    name: ClassVar[str] = ""
    #: What it writes is text in UTF-8.
    is_text: ClassVar[bool] = False

    @property
    def hint(self) -> Any:
        """The type of its values, ``Any`` where it is open."""
        return Any

    @property
    def schema(self) -> Schema | None:
        """The columns of its values; None where they are not known."""
        from headrace.columns.schema import Schema

        return Schema.of(self.hint)

    def read_columns(self, data: pa.BinaryArray) -> pa.RecordBatch:
        """Read the columns of many values, none of them null, without more objects than needed.

        Caller: sources whose records go to operators over columns.
        """
        schema = self.schema
        assert schema is not None
        return schema.batch(self.deserialize_many(data))

    @abstractmethod
    def serialize(self, value: T) -> bytes:
        """Write one value."""

    @abstractmethod
    def deserialize(self, data: bytes) -> T:
        """Read one value."""

    def serialize_many(self, values: list[T]) -> pa.BinaryArray:
        """Write many values."""
        return pa.array(list(map(self.serialize, values)), pa.binary())

    def deserialize_many(self, data: pa.BinaryArray) -> list[T]:
        """Read many values, none of them null."""
        return list(map(self.deserialize, data.to_pylist()))

    def __repr__(self) -> str:
        return self.name or type(self).__name__


def wrong_type(serde: Serde[Any], value: object, expected: str) -> TypeError:
    """Make the error for a value of a type that a serde does not write."""
    return TypeError(
        f"serdes.{serde!r} writes {expected}, not {type(value).__qualname__}: {value!r:.100}"
    )
