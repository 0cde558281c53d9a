"""Committed batches, read back one by one out of the topics that their sinks wrote."""

from __future__ import annotations

__all__: list[str] = []
