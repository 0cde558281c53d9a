"""Fixtures that the fault tests share."""

from __future__ import annotations

from tests.spark.pipelines import rig

__all__ = ["rig"]
