"""Aggregates at work: what is kept per key, how it merges, and how it is taken back."""

from __future__ import annotations

__all__: list[str] = []
