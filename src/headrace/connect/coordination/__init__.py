"""A cluster of workers: who is alive, who assigns, and what becomes of those that are lost."""

from __future__ import annotations

from headrace.connect.coordination.coordinator import (
    Cluster,
    ClusterTimes,
    Coordinator,
    CoordinatorStatistics,
)
from headrace.connect.coordination.members import Members

__all__ = [
    "Cluster",
    "ClusterTimes",
    "Coordinator",
    "CoordinatorStatistics",
    "Members",
]
