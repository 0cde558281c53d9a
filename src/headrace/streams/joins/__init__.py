"""Joins in the front door."""

from __future__ import annotations

__all__: list[str] = []
