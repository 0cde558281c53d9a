"""Every operator that joins, and what runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.runtime.joins.foreign_keys import (
    ForeignKeyJoinProcessor,
    ForeignKeyRequestsProcessor,
)
from headrace.runtime.joins.interval import IntervalJoinProcessor
from headrace.runtime.joins.joined import JoinedProcessor
from headrace.runtime.joins.latest import LatestJoinProcessor
from headrace.runtime.joins.lookups import GlobalTableJoinProcessor, StreamTableJoinProcessor
from headrace.runtime.joins.sessions import SessionJoinProcessor
from headrace.runtime.joins.tables import (
    FilterTableProcessor,
    KeepTableProcessor,
    MapTableProcessor,
    TableJoinProcessor,
)
from headrace.runtime.joins.windows import WindowJoinProcessor
from headrace.topology.operators.joins import (
    IntervalJoin,
    Joined,
    LatestJoin,
    SessionJoin,
    WindowJoin,
)
from headrace.topology.operators.tables import (
    FilterTable,
    ForeignKeyJoin,
    ForeignKeyRequests,
    GlobalTableJoin,
    KeepTable,
    MapTable,
    StreamTableJoin,
    TableJoin,
)

if TYPE_CHECKING:
    from headrace.runtime.processors import Processor
    from headrace.topology.operators.core import Operator

__all__ = ["JOINS"]

#: Operator to processor.
JOINS: dict[type[Operator], type[Processor[Any]]] = {
    FilterTable: FilterTableProcessor,
    ForeignKeyJoin: ForeignKeyJoinProcessor,
    ForeignKeyRequests: ForeignKeyRequestsProcessor,
    GlobalTableJoin: GlobalTableJoinProcessor,
    IntervalJoin: IntervalJoinProcessor,
    Joined: JoinedProcessor,
    KeepTable: KeepTableProcessor,
    LatestJoin: LatestJoinProcessor,
    MapTable: MapTableProcessor,
    SessionJoin: SessionJoinProcessor,
    StreamTableJoin: StreamTableJoinProcessor,
    TableJoin: TableJoinProcessor,
    WindowJoin: WindowJoinProcessor,
}
