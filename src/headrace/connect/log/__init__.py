"""The log of a Connect cluster: records, the function that sums them up, and where they lie."""

from __future__ import annotations

from headrace.connect.log.entries import ConnectorEntry, Kept, Leftover, TaskEntry, UnitStory
from headrace.connect.log.file import FileLog
from headrace.connect.log.folding import Applied, Outcome, Rejected, RejectedFor, fold
from headrace.connect.log.memory import MemoryLog
from headrace.connect.log.protocol import LARGEST_RECORD, Log, LogStatistics
from headrace.connect.log.records import (
    AssignmentMade,
    ConnectorDeleted,
    ConnectorPut,
    LeftoversGone,
    LevelSet,
    Purged,
    Record,
    RestartAsked,
    RungTaken,
    StatusSet,
    TargetSet,
    TasksPut,
    TasksWanted,
    TopicsReset,
    TopicUsed,
)
from headrace.connect.log.settling import settle
from headrace.connect.log.view import ClusterView

__all__ = [
    "LARGEST_RECORD",
    "Applied",
    "AssignmentMade",
    "ClusterView",
    "ConnectorDeleted",
    "ConnectorEntry",
    "ConnectorPut",
    "FileLog",
    "Kept",
    "Leftover",
    "LeftoversGone",
    "LevelSet",
    "Log",
    "LogStatistics",
    "MemoryLog",
    "Outcome",
    "Purged",
    "Record",
    "Rejected",
    "RejectedFor",
    "RestartAsked",
    "RungTaken",
    "StatusSet",
    "TargetSet",
    "TaskEntry",
    "TasksPut",
    "TasksWanted",
    "TopicUsed",
    "TopicsReset",
    "UnitStory",
    "fold",
    "settle",
]
