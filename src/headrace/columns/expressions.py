"""Expressions over columns: what is computed for all records of a chunk at once.

An expression is data: it says what to compute and holds no value.  Names are looked up, and types
are checked, when the operator that uses it is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Name:
    """A column, by its name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Value:
    """The same value for every record."""

    value: Any
    #: Tells 1, 1.0 and True apart.
    kind: type = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", type(self.value))

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Call:
    """A function of other expressions."""

    function: str
    arguments: tuple[Node, ...]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


Node = Name | Value | Call
"""A part of an expression; compared and hashed by what it says."""

#: Types that a column can be cast to, by name.
CastType = Literal["int", "float", "string", "bool", "bytes", "date", "timestamp"]


class Expression:
    """A computation on columns, made with :func:`col` and :func:`lit`.

    Arithmetic, comparisons, ``&``, ``|`` and ``~`` make larger ones.  The result for a null is
    null, except where ``&`` and ``|`` know the answer without it.

    Parameters
    ----------
    node
        What to compute.
    name
        Name of the result's column.

    Examples
    --------
    >>> (col("price") * col("quantity") > 100) & col("city").is_not_null()
    <expression and(greater(multiply(price, quantity), 100), is_not_null(city))>
    """

    def __init__(self, node: Node, name: str = "") -> None:
        self.node = node
        self.name = name or (node.name if isinstance(node, Name) else "")

    def __repr__(self) -> str:
        return f"<expression {self.node}>"

    def __bool__(self) -> bool:
        message = f"{self!r} has no truth value: use &, | and ~ in place of and, or and not"
        raise TypeError(message)

    def _call(self, function: str, *others: Any) -> Expression:
        return Expression(Call(function, (self.node, *map(node_of, others))))

    def _reversed(self, function: str, other: Any) -> Expression:
        return Expression(Call(function, (node_of(other), self.node)))

    def named(self, name: str) -> Expression:
        """Return the expression with a name for the result's column."""
        return Expression(self.node, name)

    def __add__(self, other: Any) -> Expression:
        return self._call("add", other)

    def __radd__(self, other: Any) -> Expression:
        return self._reversed("add", other)

    def __sub__(self, other: Any) -> Expression:
        return self._call("subtract", other)

    def __rsub__(self, other: Any) -> Expression:
        return self._reversed("subtract", other)

    def __mul__(self, other: Any) -> Expression:
        return self._call("multiply", other)

    def __rmul__(self, other: Any) -> Expression:
        return self._reversed("multiply", other)

    def __truediv__(self, other: Any) -> Expression:
        return self._call("divide", other)

    def __rtruediv__(self, other: Any) -> Expression:
        return self._reversed("divide", other)

    def __floordiv__(self, other: Any) -> Expression:
        return self._call("floor_divide", other)

    def __mod__(self, other: Any) -> Expression:
        return self._call("modulo", other)

    def __neg__(self) -> Expression:
        return self._call("negate")

    def __abs__(self) -> Expression:
        return self._call("abs")

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return self._call("equal", other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return self._call("not_equal", other)

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> Expression:
        return self._call("less", other)

    def __le__(self, other: Any) -> Expression:
        return self._call("less_equal", other)

    def __gt__(self, other: Any) -> Expression:
        return self._call("greater", other)

    def __ge__(self, other: Any) -> Expression:
        return self._call("greater_equal", other)

    def __and__(self, other: Any) -> Expression:
        return self._call("and", other)

    def __or__(self, other: Any) -> Expression:
        return self._call("or", other)

    def __invert__(self) -> Expression:
        return self._call("not")

    def is_null(self) -> Expression:
        """Test whether there is no value."""
        return self._call("is_null")

    def is_not_null(self) -> Expression:
        """Test whether there is a value."""
        return self._call("is_not_null")

    def is_in(self, values: Iterable[Any]) -> Expression:
        """Test whether the value is one of these; null for a null, unless None is among them."""
        return self._call("is_in", *values)

    def between(self, low: Any, high: Any) -> Expression:
        """Test whether the value lies between two others or is one of them."""
        within = (self._call("greater_equal", low).node, self._call("less_equal", high).node)
        return Expression(Call("and", within))

    def lower(self) -> Expression:
        """Turn text into lower case."""
        return self._call("lower")

    def upper(self) -> Expression:
        """Turn text into upper case."""
        return self._call("upper")

    def strip(self) -> Expression:
        """Cut white space off both ends of text."""
        return self._call("strip")

    def length(self) -> Expression:
        """Count the characters of text."""
        return self._call("length")

    def contains(self, text: str) -> Expression:
        """Test whether text contains this."""
        return self._call("contains", text)

    def starts_with(self, text: str) -> Expression:
        """Test whether text begins with this."""
        return self._call("starts_with", text)

    def ends_with(self, text: str) -> Expression:
        """Test whether text ends with this."""
        return self._call("ends_with", text)

    def like(self, pattern: str) -> Expression:
        """Test whether text matches an SQL pattern: ``%`` is any text, ``_`` one character."""
        return self._call("like", pattern)

    def replace(self, old: str, new: str) -> Expression:
        """Replace every occurrence of one text by another."""
        return self._call("replace", old, new)

    def substring(self, start: int, length: int | None = None) -> Expression:
        """Cut a piece out of text, from character ``start`` on.

        ``start`` counts from 0, or from the end if negative, as in ``text[start:][:length]``.
        """
        return self._call("substring", start, length)

    def split(self, separator: str | None = None) -> Expression:
        """Split text into a list, at white space unless a separator is given."""
        return self._call("split", separator)

    def round(self, digits: int = 0) -> Expression:
        """Round half to even, as Python does."""
        return self._call("round", digits)

    def cast(self, to: CastType) -> Expression:
        """Turn values into another type, as Python's ``int``, ``float`` and ``str`` do.

        ``on_error`` decides about values that cannot be turned; ``docs/guides/build/columns.md``
        lists the differences.
        """
        return self._call("cast", to)


def col(name: str) -> Expression:
    """Return the expression for a column.

    A stream of single values, such as lines of text, has one column, ``value``.

    Examples
    --------
    >>> col("price") * 2
    <expression multiply(price, 2)>
    """
    return Expression(Name(name))


def lit(value: Any) -> Expression:
    """Make an expression of a value.

    Examples
    --------
    >>> lit("a") + col("name")
    <expression add('a', name)>
    """
    return Expression(Value(value))


def explode(items: Expression) -> Expression:
    """Return one record for each item of a list, and none where the list is empty or missing.

    It may stand only at the top of a column of ``select``, and only once.

    Examples
    --------
    >>> explode(col("value").split()).named("word")
    <expression explode(split(value, None))>
    """
    return Expression(Call("explode", (items.node,)), items.name)


def coalesce(*choices: Any) -> Expression:
    """Return the first choice that is not null.

    Examples
    --------
    >>> coalesce(col("nickname"), col("name"), "nobody")
    <expression coalesce(nickname, name, 'nobody')>
    """
    return Expression(Call("coalesce", tuple(map(node_of, choices))))


def if_else(condition: Expression, then: Any, otherwise: Any) -> Expression:
    """Choose by a condition; where it is null, choose ``otherwise``.

    Examples
    --------
    >>> if_else(col("price") > 100, "dear", "cheap")
    <expression if_else(greater(price, 100), 'dear', 'cheap')>
    """
    nodes = (condition.node, node_of(then), node_of(otherwise))
    return Expression(Call("if_else", nodes))


def concat(*texts: Any) -> Expression:
    """Join texts; the result is null where one of them is.

    Examples
    --------
    >>> concat(col("first"), " ", col("last"))
    <expression concat(first, ' ', last)>
    """
    return Expression(Call("concat", tuple(map(node_of, texts))))


def node_of(value: Any) -> Node:
    """Return the node of an expression, or of a plain value."""
    if isinstance(value, Expression):
        return value.node
    return Value(value)
