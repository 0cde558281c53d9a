"""Operators of tables: the latest value of each key, where None deletes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.topology.operators.core import Operator

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.topology.operators.joins import JoinKind

__all__ = [
    "FilterTable",
    "ForeignKeyJoin",
    "ForeignKeyRequests",
    "GlobalTableJoin",
    "KeepTable",
    "Lookup",
    "LookupKind",
    "MapTable",
    "StreamTableJoin",
    "TableJoin",
]

LookupKind = Literal["inner", "left"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTable(Operator):
    """Keeps the last value of each key, and passes on what changes."""

    label: ClassVar[str] = "table"
    stateful: ClassVar[bool] = True
    update_ports: ClassVar[tuple[int, ...]] = (0,)

    key_serde: Serde[Any]
    #: Of values on their way, None included.
    value_serde: Serde[Any]

    def input_serde(self, port: int) -> Serde[Any]:
        """Give the serde of the changes."""
        del port
        return self.value_serde

    def facts(self) -> list[str]:
        """Say what ``describe()`` shows of it."""
        return [f"values {self.value_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapTable(Operator):
    """Replaces values by ``function(value)``; what is deleted stays so."""

    label: ClassVar[str] = "map_values"

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTable(Operator):
    """Deletes the keys whose value ``function(value)`` does not find true."""

    label: ClassVar[str] = "filter"

    function: Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TwoSided(Operator):
    label: ClassVar[str] = "join"
    stateful: ClassVar[bool] = True
    update_ports: ClassVar[tuple[int, ...]] = (0, 1)

    key_serde: Serde[Any]
    left_serde: Serde[Any]
    right_serde: Serde[Any]
    function: Callable[..., Any]
    #: Whether the function takes (key, left, right).
    takes_key: bool = False

    def input_serde(self, port: int) -> Serde[Any]:
        """Give the serde of one side's records."""
        return self.right_serde if port else self.left_serde


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup(_TwoSided):
    """Looks up each record of a stream in a table."""

    update_ports: ClassVar[tuple[int, ...]] = (0,)

    kind: LookupKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTableJoin(Lookup):
    """Looks up each record of a stream in a table with the same keys."""

    def facts(self) -> list[str]:
        """Say what ``describe()`` shows of it."""
        return [f"{self.kind}, stream with table", f"table {self.right_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalTableJoin(Lookup):
    """Looks up each record of a stream, by any key, in a table that every partition has whole."""

    selector: Callable[..., Any]
    #: Whether the selector takes (key, value).
    selects_by_key: bool = False

    def facts(self) -> list[str]:
        """Say what ``describe()`` shows of it."""
        return [f"{self.kind}, stream with global table", f"table {self.right_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin(_TwoSided):
    """Joins two tables with the same keys into one."""

    kind: JoinKind

    def facts(self) -> list[str]:
        """Say what ``describe()`` shows of it."""
        return [f"{self.kind}, tables", f"left {self.left_serde!r}", f"right {self.right_serde!r}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyRequests(Operator):
    """Sends each row of a table to the key that it refers to: (own key, row) pairs.

    When a row refers to another key than before, the old place gets word, too.
    """

    label: ClassVar[str] = "foreign_key"
    stateful: ClassVar[bool] = True
    update_ports: ClassVar[tuple[int, ...]] = (0,)
    changes_key: ClassVar[bool] = True

    key_serde: Serde[Any]
    #: Of the rows, None included.
    value_serde: Serde[Any]
    selector: Callable[..., Any]

    @property
    def gathers(self) -> bool:
        """Whether all records of a key are in one partition behind it: it gives other keys."""
        return False

    def input_serde(self, port: int) -> Serde[Any]:
        """Give the serde of the rows."""
        del port
        return self.value_serde


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyJoin(_TwoSided):
    """Joins rows with the row that they refer to; gives results by the referring row's key."""

    changes_key: ClassVar[bool] = True

    kind: LookupKind
    #: Of the rows that refer, as they lie in the requests and in the state.
    row_serde: Serde[Any]

    @property
    def gathers(self) -> bool:
        """Whether all records of a key are in one partition behind it: it gives other keys."""
        return False

    def facts(self) -> list[str]:
        """Say what ``describe()`` shows of it."""
        return [f"{self.kind}, by foreign key", f"table {self.right_serde!r}"]
