"""Operators that merge, branch and move streams, and the one that awaits coroutines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.topology.operators.core import Function, Operator, RecordFunction

if TYPE_CHECKING:
    from headrace.serdes import Serde


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(Operator):
    """Sends on the records of all its parents, in the order in which their messages arrived."""

    label: ClassVar[str] = "merge"

    #: Writes the values that reach it from an earlier stage.
    value_serde: Serde[Any]

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the records that parent number ``port`` sends through a shuffle."""
        del port
        return self.value_serde


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch(Operator):
    """Sends each record to the output of the first predicate that is true for it."""

    label: ClassVar[str] = "branch"

    predicates: tuple[tuple[str, RecordFunction], ...]
    #: The output for records for which no predicate is true.
    default: str

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        names = [name for name, _ in self.predicates]
        return [f"to {', '.join(names)}, else {self.default}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Operator):
    """Sends on what its parent sends to a named output."""

    label: ClassVar[str] = "output"

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"output {self.output}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition(Operator):
    """Moves records to other tasks: by their keys, or evenly where they have none."""

    label: ClassVar[str] = "repartition"
    changes_key: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    value_serde: Serde[Any]
    #: Records have no keys and are spread evenly.
    evenly: bool = False
    #: How many of the job's partitions take records; None for all.
    partitions: int | None = None

    @property
    def gathers(self) -> bool:
        """Whether all records of a key are in the one partition where their state would be."""
        return not self.evenly and self.partitions is None

    def input_serde(self, port: int) -> Serde[Any]:
        """Return the serde of the records that parent number ``port`` sends through a shuffle."""
        del port
        return self.value_serde

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        how = ["evenly"] if self.evenly else []
        return how if self.partitions is None else [*how, f"to {self.partitions} partitions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapAsync(Operator):
    """Replaces the value by what ``await function(value)`` returns, many at a time, in order."""

    label: ClassVar[str] = "map_async"

    function: Function
    #: The function takes key and value.
    takes_key: bool = False
    max_in_flight: int = 100

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        return [f"{self.max_in_flight} in flight"]
