"""What users say of a topology, component by component, before it is checked as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from headrace.errors import TopologyError
from headrace.topology import DEFAULT_STREAM, GroupingKind, Origin
from headrace.topology.callers import caller

if TYPE_CHECKING:
    from headrace.topology import CustomGrouping

__all__ = ["BoltDeclarer", "Declared", "Input", "Role", "SinkDeclarer"]

Role = Literal["spout", "bolt", "sink"]
"""How a component was added."""


@dataclass(frozen=True, slots=True)
class Input:
    """One subscription as it was declared."""

    #: Name of the component that emits.
    source: str
    stream: str
    kind: GroupingKind
    fields: tuple[str, ...]
    custom: CustomGrouping | None
    origin: Origin


@dataclass(frozen=True, slots=True)
class Declared:
    """One component as it was added."""

    name: str
    role: Role
    #: The user's object.
    component: Any
    parallelism: int
    origin: Origin
    #: Names of the fields of each stream.
    streams: dict[str, tuple[str, ...]] = field(default_factory=dict)
    direct_streams: frozenset[str] = frozenset()
    inputs: tuple[Input, ...] = ()

    def taking(self, inputs: list[Input]) -> Declared:
        """Give the same component with its subscriptions."""
        return replace(self, inputs=tuple(inputs))


class _Subscribing:
    """Collects the subscriptions of one component."""

    def __init__(self, component: str) -> None:
        self._component = component
        self.inputs: list[Input] = []

    def __repr__(self) -> str:
        return f"<inputs of '{self._component}'>"

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take the tuples of a component's stream, spread evenly over the tasks."""
        return self._take("shuffle", component, stream)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take the tuples where they are emitted, if that can be, else spread evenly."""
        return self._take("local_or_shuffle", component, stream)

    def fields_grouping(self, component: str, *fields: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take tuples with the same values of some fields in the same task.

        Parameters
        ----------
        component
            Name of the component that emits them.
        fields
            Names of the fields.
        stream
            The stream of the component.
        """
        return self._take("fields", component, stream, fields)

    def _take(
        self,
        kind: GroupingKind,
        component: str,
        stream: str,
        fields: tuple[str, ...] = (),
        custom: CustomGrouping | None = None,
    ) -> Self:
        new = Input(component, stream, kind, fields, custom, caller().origin)
        for known in self.inputs:
            if (known.source, known.stream) == (component, stream):
                raise TopologyError(
                    f"'{self._component}' takes stream '{stream}' of '{component}' twice:"
                    f" at {known.origin} and at {new.origin}",
                    hint="leave one out: each tuple would come twice",
                )
        self.inputs.append(new)
        return self


class BoltDeclarer(_Subscribing):
    """Says which tuples a bolt takes, and in which of its tasks.

    Each method gives the declarer back, so that a bolt may take several streams.

    Examples
    --------
    >>> declarer = BoltDeclarer("count")
    >>> declarer.fields_grouping("split", "word").all_grouping("commands")
    <inputs of 'count'>
    """

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take every tuple in every task."""
        return self._take("all", component, stream)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take all tuples in task 0."""
        return self._take("global", component, stream)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Take the tuples of a direct stream, each in the task that ``emit_direct`` named."""
        return self._take("direct", component, stream)

    def custom_grouping(
        self, component: str, grouping: CustomGrouping, stream: str = DEFAULT_STREAM
    ) -> Self:
        """Take each tuple in the tasks that ``grouping.choose(values, tasks)`` gives.

        Raises
        ------
        TopologyError
            The grouping has no such method.
        """
        given: object = grouping
        if not callable(getattr(given, "choose", None)):
            raise TopologyError(
                f"custom_grouping of '{self._component}' at {caller().origin} is"
                f" {grouping!r:.100}, which has no method choose(values, tasks)",
                hint="give an object of a class with that method",
            )
        return self._take("custom", component, stream, custom=grouping)


class SinkDeclarer(_Subscribing):
    """Says which tuples are written to a topic.

    With ``fields_grouping`` the tuples with the same values of the fields are written by one task,
    in their order, and these values are the message's key; else each tuple is written by the task
    that emits it.

    Examples
    --------
    >>> SinkDeclarer("out").shuffle_grouping("count")
    <inputs of 'out'>
    """
