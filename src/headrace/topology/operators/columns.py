"""Operators over columns, which run on Arrow data, without Python code for each record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.topology.operators.core import Operator

if TYPE_CHECKING:
    from headrace.columns.aggregates import ColumnMeasure
    from headrace.columns.expressions import Node
    from headrace.columns.schema import Schema
    from headrace.serdes import Serde


#: Columns with the bounds of the window of a result.
WINDOW_COLUMNS = ("window_start", "window_end")


def _shown(columns: tuple[tuple[str, Node], ...]) -> str:
    return ", ".join(name if str(node) == name else f"{name} = {node}" for name, node in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Operator):
    """Replaces the value by columns that are computed from its own."""

    label: ClassVar[str] = "select"

    schema: Schema
    columns: tuple[tuple[str, Node], ...]

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [_shown(self.columns)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereColumns(Operator):
    """Keeps the records for which a condition is true."""

    label: ClassVar[str] = "where"

    schema: Schema
    condition: Node

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [str(self.condition)]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBy(Operator):
    """Sets the key to columns: the value of one, or a tuple of the values of several."""

    label: ClassVar[str] = "group_by"
    changes_key: ClassVar[bool] = True

    schema: Schema
    columns: tuple[tuple[str, Node], ...]

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [_shown(self.columns)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateColumns(Operator):
    """Keeps the cells of some measures per group and emits their results when they change."""

    label: ClassVar[str] = "aggregate columns"
    stateful: ClassVar[bool] = True
    takes_back: ClassVar[bool] = True

    #: Columns of the records that come in.
    schema: Schema
    #: Names of the columns of the key.
    keys: tuple[str, ...]
    measures: tuple[ColumnMeasure, ...]
    #: Columns of its results: those of the key, then the measures.
    results: Schema
    key_serde: Serde[Any]
    #: Writes a group's cells, for the state store and for the shuffle after combining.
    state_serde: Serde[Any]
    #: Writes records that travel uncombined.
    value_serde: Serde[Any]
    #: Whether updates come in; then the last measure counts the records that a group has left.
    of_updates: bool = False

    @property
    def updates(self) -> bool:
        """Whether a result replaces the previous one of its key."""
        return True

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the records that parent number ``port`` sends through a shuffle."""
        del port
        return self.value_serde

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [", ".join(f"{one.column} = {one}" for one in self.shown), "emit update"]

    @property
    def shown(self) -> tuple[ColumnMeasure, ...]:
        """The measures that results have a column for."""
        return self.measures[:-1] if self.of_updates else self.measures


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows(Operator):
    """Turns the results of windows into columns: key, measures, and the bounds of the window."""

    label: ClassVar[str] = "window rows"

    keys: tuple[str, ...]
    results: Schema

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [", ".join(self.results.names)]
