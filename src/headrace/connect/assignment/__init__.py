"""Who runs what: a pure, sticky assignment of connectors and tasks to workers."""

from __future__ import annotations

from headrace.connect.assignment.assigning import assign
from headrace.connect.assignment.plan import Assignment, Place

__all__ = ["Assignment", "Place", "assign"]
