"""Fixtures that the fault tests share."""

from __future__ import annotations

from tests.faults.short_leases import namesrv
from tests.spark.pipelines import rig

__all__ = ["namesrv", "rig"]
