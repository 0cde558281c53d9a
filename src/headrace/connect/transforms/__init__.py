"""Transforms: change records on their way, one at a time."""

from __future__ import annotations

from headrace.connect.transforms.base import Record, SidedTransform, Transform, both_sides

__all__ = ["Record", "SidedTransform", "Transform", "both_sides"]
