"""Fixtures that the tests of the command line share."""

from __future__ import annotations

from tests.spark.pipelines import rig

__all__ = ["rig"]
