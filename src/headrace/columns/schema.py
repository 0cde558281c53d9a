"""Schemas: which columns the values of a stream have."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa

#: Integers beyond 64 bits, as Arrow can hold them.
WIDE = pa.decimal256(76, 0)

_ARROW: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"),
    Decimal: pa.decimal128(38, 9),
    float: pa.float64(),
    int: pa.int64(),
    str: pa.string(),
}


@dataclass(frozen=True, slots=True)
class Schema:
    """Names and types of columns, and how values that are Python objects turn into them.

    A decimal column takes the precision that the values of a chunk need, and an int column becomes
    a wide one where 64 bits are not enough.
    """

    columns: tuple[tuple[str, pa.DataType], ...]
    #: ``single``: the value is the only column; ``items`` and ``attributes``: it has them all.
    kind: str = "items"

    @classmethod
    def of(cls, hint: Any) -> Schema | None:
        """Return the columns of a type, or None if it has none.

        Examples
        --------
        >>> from typing import TypedDict
        >>> class Order(TypedDict):
        ...     item: str
        ...     price: int
        >>> Schema.of(Order).names, Schema.of(str).names, Schema.of(list)
        (['item', 'price'], ['value'], None)
        """
        single = arrow_type(hint)
        if single is not None:
            return cls((("value", single),), "single")
        found = fields_of(hint)
        columns = ((name, arrow_type(kind)) for name, kind in found.items())
        known = tuple((name, kind) for name, kind in columns if kind is not None)
        kind = "items" if typing.is_typeddict(hint) else "attributes"
        return cls(known, kind) if known else None

    @property
    def names(self) -> list[str]:
        """Names of the columns, in order."""
        return [name for name, _ in self.columns]

    def check_names(self) -> None:
        """Refuse two columns of one name.

        Raises
        ------
        ValueError
            If there are two; the message names the column.
        """
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                message = f"two columns have the name '{name}'"
                raise ValueError(message)
            seen.add(name)

    def batch(self, values: Sequence[Any]) -> pa.RecordBatch:
        """Turn values into columns.

        Raises
        ------
        pyarrow.ArrowException
            If a value does not fit its column.
        """
        arrays = [
            column_of(list(map(get, values)) if get else list(values), kind)
            for get, (_, kind) in zip(self._getters(), self.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, self.names)

    def _getters(self) -> Iterable[Callable[[Any], Any] | None]:
        if self.kind == "single":
            return [None]
        if self.kind == "attributes":
            return [attrgetter(name) for name in self.names]
        return [_item_or_none(name) for name in self.names]

    def without_rows(self) -> pa.RecordBatch:
        """Return columns without rows, to try an expression on."""
        return pa.RecordBatch.from_arrays(
            [pa.array([], kind) for _, kind in self.columns], self.names
        )


def _item_or_none(name: str) -> Callable[[Any], Any]:
    get = itemgetter(name)

    def find(value: Any) -> Any:
        try:
            return get(value)
        except KeyError:
            return None

    return find


_LISTINGS = ("__dataclass_fields__", "__struct_fields__", "__pydantic_fields__")


def has_fields(hint: Any) -> bool:
    """Return whether it is a dataclass, TypedDict, named tuple, Struct or pydantic model."""
    if not isinstance(hint, type):
        return False
    named = issubclass(hint, tuple) and hasattr(hint, "_fields")
    return named or typing.is_typeddict(hint) or any(hasattr(hint, name) for name in _LISTINGS)


def fields_of(hint: Any) -> dict[str, Any]:
    """Return the fields of such a type and their types, by name."""
    if not has_fields(hint):
        return {}
    hints = typing.get_type_hints(hint)
    for listing in (*_LISTINGS, "_fields"):
        names = getattr(hint, listing, None)
        if names is not None:
            return {name: hints[name] for name in names if name in hints}
    return hints


def arrow_type(hint: Any) -> pa.DataType | None:
    """Return the type of a column of values of a type; None where there is none."""
    kinds = set(members_of(hint))
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if typing.get_origin(kind) is list:
        items = arrow_type(typing.get_args(kind)[0])
        return None if items is None else pa.list_(items)
    return _ARROW.get(kind)


def members_of(hint: Any) -> list[Any]:
    """Return the types of what a value of a type may be, other than None.

    Examples
    --------
    >>> from typing import Annotated, Literal
    >>> members_of(Annotated[int, "cents"] | None), members_of(Literal["a"] | list[int])
    ([<class 'int'>], [<class 'str'>, list[int]])
    """
    if isinstance(hint, typing.NewType):
        return members_of(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Annotated, typing.Required, typing.NotRequired):
        return members_of(arguments[0])
    if origin is typing.Literal:
        return list(map(type, arguments))
    if origin in (typing.Union, types.UnionType):
        present = [one for one in arguments if one is not types.NoneType]
        return [each for one in present for each in members_of(one)]
    return [hint]


def column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Make a column, wider than its type where the values need it.

    Examples
    --------
    >>> column_of([1, None], pa.int64()).type, column_of([2**70], pa.int64()).type
    (DataType(int64), Decimal256Type(decimal256(76, 0)))
    """
    if pa.types.is_list(kind) and None not in values:
        ends = pa.array(accumulate(map(len, values), initial=0), pa.int32())
        flat = column_of(list(chain.from_iterable(values)), kind.value_type)
        return pa.ListArray.from_arrays(ends, flat)
    if pa.types.is_decimal(kind):
        found = pa.array(values)
        return found if pa.types.is_decimal(found.type) else found.cast(kind)
    if values and isinstance(values[0], enum.Enum):
        values = [value if value is None else value.value for value in values]
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowInvalid):
        if not pa.types.is_integer(kind):
            raise
        return pa.array([None if v is None else Decimal(v) for v in values], WIDE)
