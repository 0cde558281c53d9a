"""Every operator that joins, and what runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.runtime.joins.interval import IntervalJoinProcessor
from headrace.runtime.joins.joined import JoinedProcessor
from headrace.runtime.joins.latest import LatestJoinProcessor
from headrace.runtime.joins.windows import WindowJoinProcessor
from headrace.topology.joins import IntervalJoin, Joined, LatestJoin, WindowJoin

if TYPE_CHECKING:
    from headrace.runtime.processors import Processor
    from headrace.topology.operators import Operator

__all__ = ["JOINS"]

#: Operator to processor.
JOINS: dict[type[Operator], type[Processor[Any]]] = {
    IntervalJoin: IntervalJoinProcessor,
    Joined: JoinedProcessor,
    LatestJoin: LatestJoinProcessor,
    WindowJoin: WindowJoinProcessor,
}
