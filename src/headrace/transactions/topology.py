"""TransactionTopology: what the builder builds, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.transactions.topics import TopicSink

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.settings import Guarantee
    from headrace.topology import Topology
    from headrace.transactions.config import Configuration
    from headrace.transactions.declaring import Declared
    from headrace.transactions.graph import Group
    from headrace.transactions.kinds import Kind

__all__ = ["TransactionTopology"]


@dataclass(frozen=True)
class TransactionTopology:
    """Spouts and bolts, checked, and what the engine runs for them.

    Made by :meth:`TransactionTopologyBuilder.build`.
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
    _groups: tuple[Group, ...]
    _components: Mapping[str, Declared]

    @property
    def guarantee(self) -> Guarantee:
        """What holds for each tuple after failures, by the configuration."""
        return "exactly_once" if self.config["transaction.exactly.once.mode"] else "at_least_once"

    def group_of(self, spout: str) -> int:
        """Give the number of a spout's group.

        Raises
        ------
        KeyError
            There is no such spout.
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

    def _shown(self, group: Group) -> list[str]:
        width = max(map(len, group.members))
        return [
            f"    {name:<{width}}  {self._component(self._components[name], group)}"
            for name in group.members
        ]

    def _component(self, declared: Declared, group: Group) -> str:
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


def _why(group: Group) -> str:
    spouts = ", ".join(group.spouts)
    if len(group.spouts) == 1:
        return f"spout {spouts}"
    return f"spouts {spouts}, which meet in the state of {', '.join(group.shared)}"


def _remark(ignored: str | None) -> str:
    return "" if ignored is None else f" (changes nothing: {ignored})"
