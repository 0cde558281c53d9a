"""Spouts and bolts at run time: instances, their callbacks, and tuples on their way."""

from __future__ import annotations

__all__: list[str] = []
