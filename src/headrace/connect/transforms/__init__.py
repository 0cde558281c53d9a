"""Transforms: change records on their way, one at a time."""

from __future__ import annotations

from headrace.connect.transforms.base import OfKey, OfValue, Record, SidedTransform, Transform

__all__ = ["OfKey", "OfValue", "Record", "SidedTransform", "Transform"]
