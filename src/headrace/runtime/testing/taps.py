"""Taps: what operators send to their late outputs, kept for a test to read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from headrace.runtime.chunk import Chunk
from headrace.runtime.processors import Processor
from headrace.runtime.stage import PROCESSORS
from headrace.runtime.task import TaskContext
from headrace.topology.operators.core import Operator

if TYPE_CHECKING:
    from headrace.topology import Topology

__all__ = ["LATE", "TappedContext", "tapped"]

#: The output that takes late records.
LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tap(Operator):
    """Keeps the records of one output of its parent for the test driver."""

    label: ClassVar[str] = "tap"


@dataclass(slots=True)
class TappedContext(TaskContext):
    """A task that also keeps what taps take."""

    #: Chunks by the name of the operator that gave them.
    taken: dict[str, list[Chunk]] = field(default_factory=lambda: defaultdict(list))


class _TapProcessor(Processor[_Tap]):
    def process(self, chunk: Chunk) -> Chunk:
        """Keep the records."""
        assert isinstance(self.context, TappedContext)
        self.context.taken[self.operator.parents[0]].append(chunk)
        return Chunk.empty()


PROCESSORS[_Tap] = _TapProcessor


def tapped(topology: Topology) -> Topology:
    """Add a tap to the late output of every operator that goes by event time."""
    taps = tuple(
        _Tap(name=f"tap-{operator.name}", parents=(operator.name,), output=LATE)
        for operator in topology.stateful
        if operator.timed
    )
    return replace(topology, operators=(*topology.operators, *taps)) if taps else topology
