"""Operators: the nodes of a topology, as immutable data, kind by kind."""

from __future__ import annotations

__all__: list[str] = []
