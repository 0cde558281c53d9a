"""What a Connect cluster has decided so far: the sum of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from headrace.connect.log.entries import ConnectorEntry, Kept

if TYPE_CHECKING:
    from headrace.connect.log.records import AssignmentMade, StatusSet
    from headrace.connect.naming import UnitId

__all__ = ["ClusterView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """All connectors, their tasks, their states, and who runs them.

    Two workers that have read equally far have equal views.

    Examples
    --------
    >>> from headrace.connect.log.folding import fold
    >>> from headrace.connect.log.records import ConnectorDeleted, ConnectorPut
    >>> put = ConnectorPut(request="a", name="orders", config={"connector.class": "datagen"})
    >>> view, _ = fold(ClusterView(), put, 0)
    >>> sorted(view.connectors())
    ['orders']
    >>> view, _ = fold(view, ConnectorDeleted(request="b", name="orders"), 1)
    >>> sorted(view.connectors()), sorted(view.entries)
    ([], ['orders'])
    """

    #: Of the last record that was folded; -1: none.
    position: int = -1
    #: Every name, with the marks of deleted ones: for compaction and for looking inside.
    entries: Mapping[str, ConnectorEntry] = field(default_factory=dict)
    assignment: AssignmentMade | None = None
    #: Requests that were decided lately: one that was sent twice counts once.
    recent: tuple[str, ...] = ()

    def connectors(self) -> Mapping[str, ConnectorEntry]:
        """Give the connectors that there are, without deleted ones."""
        return MappingProxyType(
            {name: entry for name, entry in self.entries.items() if not entry.deleted}
        )

    def connector(self, name: str) -> ConnectorEntry | None:
        """Give one connector, unless there is none of that name."""
        entry = self.entries.get(name)
        return None if entry is None or entry.deleted else entry

    def units(self) -> Iterator[UnitId]:
        """Give every copy that is wanted, connectors before their tasks."""
        for entry in self.connectors().values():
            yield from entry.units()

    def alive(self, worker: str | None = None) -> Iterator[StatusSet]:
        """Give every copy that may be alive, on one worker or on all: wanted, deleted or old."""
        for entry in self.entries.values():
            for status in entry.alive():
                if worker is None or status.worker == worker:
                    yield status

    def worker_of(self, connector: str, task: int | None = None) -> str | None:
        """Give the worker that is to run a connector or task; None: nobody yet."""
        made = self.assignment
        return None if made is None else made.worker_of(connector, task)

    def kept(self) -> list[Kept]:
        """Give records that make this view again when nothing else is left of the log."""
        sums = [Kept(as_of=self.position, entry=entry) for entry in self.entries.values()]
        if self.assignment is not None:
            sums.append(Kept(as_of=self.position, assignment=self.assignment))
        first = sums[0] if sums else Kept(as_of=self.position)
        names = tuple(self.entries)
        return [msgspec.structs.replace(first, names=names, recent=self.recent), *sums[1:]]
