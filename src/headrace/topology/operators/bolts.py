"""Operators that run spouts and bolts: what the front door of transactions compiles to.

Between two components a record's value is a :data:`~headrace.topology.tuples.TupleRow`.  Each
bolt takes what it subscribed to through a :class:`Subscription`, which is in the stage of the
operator that it listens to.  Task ``t`` of a component runs in partition ``t % partitions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from headrace.topology.operators.core import Operator

if TYPE_CHECKING:
    from headrace.serdes import Serde
    from headrace.topology.tuples import CustomGrouping


KEY_RANGES = 256
"""The number of key ranges of a key-value bolt; each range stays whole when it is moved."""

GroupingKind = Literal["shuffle", "local_or_shuffle", "fields", "all", "global", "direct", "custom"]


@dataclass(frozen=True, slots=True)
class Grouping:
    """The rule by which tasks of a bolt take a tuple."""

    kind: GroupingKind
    #: For ``"fields"``: the indices of the values that decide.
    fields: tuple[int, ...] = ()
    #: For ``"custom"``: the object that decides.
    custom: CustomGrouping | None = None

    @property
    def stays(self) -> bool:
        """Whether tuples may be taken where they are emitted."""
        return self.kind == "local_or_shuffle"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Component(Operator):
    """The base of spouts and bolts."""

    changes_key: ClassVar[bool] = True
    carries_back: ClassVar[bool] = False

    #: The user's object; each task has a copy of its own.
    component: Any
    parallelism: int
    #: Names of the fields of each stream that it emits to.
    streams: Mapping[str, tuple[str, ...]]
    #: Of those, the streams whose tuples name the task that takes them.
    direct_streams: frozenset[str] = frozenset()
    #: Number of the group that it works for, which callbacks get.
    group_id: int = 0
    #: The topology's configuration, which tasks get.
    config: Mapping[str, Any]

    @property
    def gathers(self) -> bool:
        """Whether all records of a key are in one partition after it; tuples have no keys."""
        return False

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        tasks = "1 task" if self.parallelism == 1 else f"{self.parallelism} tasks"
        return [type(self.component).__name__, tasks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spout(_Component):
    """Runs a spout that replays from its state; the state is one entry per task."""

    label: ClassVar[str] = "spout"
    stateful: ClassVar[bool] = True
    fixed: ClassVar[tuple[str, ...]] = ("parallelism",)

    state_serde: Serde[Any]
    #: The most tuples of a task in a batch, which a barrier may end sooner; 0: no limit.
    batch_size: int
    #: Pause after a batch that brought no tuple, ms.
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuples(Operator):
    """Makes tuples of the records of a topic that serves as a spout.

    With one field, a tuple holds the value; with several, the items of a value that is a mapping,
    the attributes of the fields' names, or the items of a list or tuple in their order.
    """

    label: ClassVar[str] = "tuples"
    changes_key: ClassVar[bool] = True

    #: Names of the values' fields, without the key's.
    fields: tuple[str, ...]
    #: Name of the field, the first one, that holds the record's key; None for no such field.
    key_field: str | None = None

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        names = self.fields if self.key_field is None else (self.key_field, *self.fields)
        return [f"fields {', '.join(names)}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription(Operator):
    """Sends the tuples of one stream of its parent to the tasks of one bolt.

    It is in the stage of the operator that it listens to; the task that takes a tuple is chosen
    after it.
    """

    label: ClassVar[str] = "subscription"
    changes_key: ClassVar[bool] = True
    carries_back: ClassVar[bool] = False

    grouping: Grouping
    #: Id of the bolt that takes.
    component: str
    #: How many tasks it has, or key ranges.
    tasks: int
    #: Id of the component that emits.
    source_component: str
    stream: str
    #: Names of the stream's fields.
    fields: tuple[str, ...]

    def facts(self) -> list[str]:
        """Return what ``describe()`` shows of it."""
        by = [self.fields[place] for place in self.grouping.fields]
        shown = f"{self.grouping.kind} grouping" + (f" by {', '.join(by)}" if by else "")
        return [shown] if self.stream == "default" else [f"stream {self.stream}", shown]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bolt(_Component):
    """Runs a bolt; its parents are its subscriptions."""

    label: ClassVar[str] = "bolt"

    #: One for each parent.
    groupings: tuple[Grouping, ...]

    @property
    def moved(self) -> tuple[str, ...]:
        """Parents whose records always come to it through a shuffle."""
        pairs = zip(self.parents, self.groupings, strict=True)
        return tuple(parent for parent, by in pairs if self.stateful or not by.stays)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulBoltNode(Bolt):
    """Runs a stateful bolt: its state is one entry per task."""

    label: ClassVar[str] = "stateful bolt"
    stateful: ClassVar[bool] = True
    fixed: ClassVar[tuple[str, ...]] = ("parallelism",)

    state_serde: Serde[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueBoltNode(Bolt):
    """Runs a bolt whose state is a value per key, in key ranges; range r is in partition r % N."""

    label: ClassVar[str] = "key-value bolt"
    stateful: ClassVar[bool] = True
    fixed: ClassVar[tuple[str, ...]] = ("ranges",)

    key_serde: Serde[Any]
    value_serde: Serde[Any]
    ranges: int = KEY_RANGES
