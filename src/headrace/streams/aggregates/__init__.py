"""Aggregates in the front door, of keyed and of windowed streams."""

from __future__ import annotations

__all__: list[str] = []
