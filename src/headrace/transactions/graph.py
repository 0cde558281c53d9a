"""Checks over all components of a topology, their order, and the groups that they fall into."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.errors import TopologyError, raised_by, refuse
from headrace.spelling import did_you_mean
from headrace.topology import DEFAULT_STREAM, Topology
from headrace.transactions.components import KeyValueBolt
from headrace.transactions.topics import Declared, Input, Kind, TopicSink, is_stateful

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.settings import Guarantee
    from headrace.transactions.config import Configuration


@dataclass(frozen=True, slots=True)
class ComponentGroup:
    """Spouts that succeed and roll back together, and what they feed."""

    #: From 0, in the order of the spouts.
    number: int
    #: Names of the spouts, in the order in which they were added.
    spouts: tuple[str, ...]
    #: Names of everything that they feed, themselves included, each after what feeds it.
    members: tuple[str, ...]
    #: The stateful bolts that several of the spouts feed, which is what makes them one group.
    shared: tuple[str, ...]


def check_inputs(name: str, components: Mapping[str, Declared]) -> None:
    """Refuse subscriptions to what is not there, and bolts without any.

    Raises
    ------
    TopologyError
        If something is wrong; it names all of it, with the components and the user's lines.
    """
    problems = [
        problem
        for component in components.values()
        for check in (
            *(partial(_check_input, component, each, components) for each in component.inputs),
            partial(_check_key_fields, component),
        )
        for problem in raised_by(check)
    ]
    taken = {each.source for component in components.values() for each in component.inputs}
    for component in components.values():
        if component.role != "spout" and not component.inputs:
            problems.append(
                TopologyError(
                    f"{component.role} '{component.name}' (added at {component.origin}) takes no"
                    " tuples",
                    hint="call a grouping on what it was added with, e.g."
                    " .shuffle_grouping('spout')",
                )
            )
        if component.role == "spout" and component.name not in taken:
            problems.append(
                TopologyError(
                    f"spout '{component.name}' (added at {component.origin}) emits for nothing:"
                    " nobody takes its tuples",
                    hint="let a bolt subscribe to it, or leave it out",
                )
            )
    refuse(f"topology '{name}' cannot work", problems)


def _check_input(taker: Declared, taken: Input, components: Mapping[str, Declared]) -> None:
    where = f"'{taker.name}' at {taken.origin}"
    source = components.get(taken.source)
    if source is None:
        raise TopologyError(
            f"{where} takes tuples of '{taken.source}', which nobody added",
            hint=_near(taken.source, [name for name in components if name != taker.name]),
        )
    if source.role == "sink":
        raise TopologyError(
            f"{where} takes tuples of '{source.name}', a topic that is written: nothing comes of it",
            hint="subscribe to what feeds it",
        )
    fields = source.streams.get(taken.stream)
    if fields is None:
        raise _no_stream(where, taken, source)
    direct = taken.stream in source.direct_streams
    if direct != (taken.kind == "direct"):
        what = "is direct: it wants direct_grouping" if direct else "is not declared direct=True"
        raise TopologyError(
            f"{where} takes stream '{taken.stream}' of '{source.name}' by {taken.kind} grouping, but"
            f" that stream {what}"
        )
    if taken.kind == "fields":
        _check_fields(where, taken, fields)


def _no_stream(where: str, taken: Input, source: Declared) -> TopologyError:
    if not source.streams:
        return TopologyError(
            f"{where} takes tuples of '{source.name}', which declares no fields",
            hint=f"name them in its declare_output_fields (added at {source.origin})",
        )
    return TopologyError(
        f"{where} takes stream '{taken.stream}' of '{source.name}', which has none of this name",
        hint=_near(taken.stream, source.streams),
    )


def _check_fields(where: str, taken: Input, fields: Sequence[str]) -> None:
    names = [str(name) for name in taken.fields]
    if not names or len(set(names)) < len(names) or names != list(taken.fields):
        raise TopologyError(
            f"{where} groups '{taken.source}' by the fields ({', '.join(names)})",
            hint="name at least one field, and each once: fields_grouping('split', 'word')",
        )
    for name in taken.fields:
        if name not in fields:
            stream = "" if taken.stream == DEFAULT_STREAM else f", stream '{taken.stream}'"
            raise TopologyError(
                f"{where} groups by field {name!r}, which '{taken.source}'{stream} does not have",
                hint=_near(name, fields),
            )


def _check_key_fields(component: Declared) -> None:
    if not isinstance(component.component, KeyValueBolt):
        return
    for each in component.inputs:
        first = component.inputs[0]
        if each.kind != "fields":
            raise TopologyError(
                f"'{component.name}' at {each.origin} keeps values by key, and {each.kind} grouping"
                " gives no key",
                hint=f"take '{each.source}' by fields_grouping('{each.source}', ...)",
            )
        if len(each.fields) != len(first.fields):
            raise TopologyError(
                f"'{component.name}' groups '{first.source}' by {len(first.fields)} fields (at"
                f" {first.origin}) and '{each.source}' by {len(each.fields)} (at {each.origin}):"
                " their keys never meet"
            )


def _near(name: str, known: Iterable[str]) -> str:
    names = list(known)
    there = f"there are {', '.join(names)}" if names else "there is none"
    return did_you_mean(name, names, there)


def in_order(components: Mapping[str, Declared]) -> list[str]:
    """Return the names, each after what feeds it, else in the order of adding.

    Raises
    ------
    TopologyError
        If they feed each other in a circle.
    """
    done: list[str] = []
    left = list(components)
    while left:
        ready = [
            name for name in left if all(each.source in done for each in components[name].inputs)
        ]
        if not ready:
            raise _circle(components, left)
        done.append(ready[0])
        left.remove(ready[0])
    return done


def _circle(components: Mapping[str, Declared], left: Sequence[str]) -> TopologyError:
    # From any component that cannot be placed, some way up leads back to it.
    path = [left[0]]
    while len(set(path)) == len(path):
        path.append(next(e.source for e in components[path[-1]].inputs if e.source in left))
    circle = path[path.index(path[-1]) :][::-1]
    lines = [
        f"'{taker}' takes '{source}' at "
        + str(next(e.origin for e in components[taker].inputs if e.source == source))
        for source, taker in pairwise(circle)
    ]
    return TopologyError(
        f"components feed each other in a circle: {' -> '.join(circle)} ({'; '.join(lines)})",
        hint="a batch would have no end: write to a topic with TopicSink and read it with"
        " TopicSpout in another topology",
    )


def groups_of(components: Mapping[str, Declared], order: Sequence[str]) -> list[ComponentGroup]:
    """Group the spouts that some stateful bolt joins, however far behind them it stands."""
    feeding = _spouts_behind(components, order)
    spouts = [name for name in components if components[name].role == "spout"]
    leader = {spout: spout for spout in spouts}

    def lead(spout: str) -> str:
        while leader[spout] != spout:
            spout = leader[spout]
        return spout

    stateful = [
        name
        for name in order
        if components[name].role != "spout" and is_stateful(components[name].component)
    ]
    for name in stateful:
        leaders = sorted({lead(spout) for spout in feeding[name]}, key=spouts.index)
        for other in leaders[1:]:
            leader[other] = leaders[0]
    found = list(dict.fromkeys(lead(spout) for spout in spouts))
    return [
        _group(number, [s for s in spouts if lead(s) == first], feeding, order, stateful)
        for number, first in enumerate(found)
    ]


def _group(
    number: int,
    spouts: Sequence[str],
    feeding: Mapping[str, frozenset[str]],
    order: Sequence[str],
    stateful: Sequence[str],
) -> ComponentGroup:
    own = frozenset(spouts)
    members = tuple(name for name in order if feeding[name] & own)
    shared = tuple(name for name in stateful if len(feeding[name] & own) > 1)
    return ComponentGroup(number, tuple(spouts), members, shared)


def _spouts_behind(
    components: Mapping[str, Declared], order: Sequence[str]
) -> dict[str, frozenset[str]]:
    feeding: dict[str, frozenset[str]] = {}
    for name in order:
        if components[name].role == "spout":
            feeding[name] = frozenset({name})
        else:
            feeding[name] = frozenset().union(*(feeding[e.source] for e in components[name].inputs))
    return feeding


@dataclass(frozen=True)
class TransactionTopology:
    """Checked spouts and bolts, and the topologies that the engine runs for them.

    :meth:`TransactionTopologyBuilder.build` makes it.
    """

    name: str
    #: What the engine runs, one per group: each has batches, commits and failures of its own.
    groups: tuple[Topology, ...]
    #: The configuration, defaults included.
    config: Configuration
    #: What each component is, by its name.
    kinds: Mapping[str, frozenset[Kind]]
    #: Topics of its own between spouts that cannot replay and their bolts.
    journal_topics: tuple[str, ...]
    _groups: tuple[ComponentGroup, ...]
    _components: Mapping[str, Declared]

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for each tuple after failures, by the configuration."""
        return "exactly_once" if self.config["transaction.exactly.once.mode"] else "at_least_once"

    def group_of(self, spout: str) -> int:
        """Return the number of a spout's group.

        Raises
        ------
        KeyError
            If there is no such spout.
        """
        for group in self._groups:
            if spout in group.spouts:
                return group.number
        raise KeyError(spout)

    def describe(self) -> str:
        """Show groups and components, then what the engine runs; depends on the topology alone."""
        lines = [f"transaction topology {self.name}"]
        for group, topology in zip(self._groups, self.groups, strict=True):
            lines.append(f"  group {group.number}, job {topology.name}: {_why(group)}")
            lines += self._shown(group)
        if self.config.given:
            lines.append("  configuration")
            lines += [
                f"    {name} = {value!r}" + _remark(self.config.ignored.get(name))
                for name, value in self.config.given.items()
            ]
        return "\n".join(lines) + "\n" + "".join(each.describe() for each in self.groups)

    def to_dot(self) -> str:
        """Show what the engine runs in Graphviz's language, a graph per group."""
        return "".join(each.to_dot() for each in self.groups)

    def _shown(self, group: ComponentGroup) -> list[str]:
        width = max(map(len, group.members))
        return [
            f"    {name:<{width}}  {self._component(self._components[name], group)}"
            for name in group.members
        ]

    def _component(self, declared: Declared, group: ComponentGroup) -> str:
        kinds = " and ".join(sorted(self.kinds[declared.name], reverse=True))
        thing = declared.component
        parts = [kinds, repr(thing) if isinstance(thing, TopicSink) else type(thing).__name__]
        parts += [
            f"<- {each.source}"
            + ("" if each.stream == "default" else f" stream {each.stream}")
            + f" ({each.kind}{' ' if each.fields else ''}{', '.join(each.fields)})"
            for each in declared.inputs
            if each.source in group.members
        ]
        return ", ".join(parts)


def _why(group: ComponentGroup) -> str:
    spouts = ", ".join(group.spouts)
    if len(group.spouts) == 1:
        return f"spout {spouts}"
    return f"spouts {spouts}, which meet in the state of {', '.join(group.shared)}"


def _remark(ignored: str | None) -> str:
    return "" if ignored is None else f" (changes nothing: {ignored})"
