"""Sources at work: queues into records."""

from __future__ import annotations

__all__: list[str] = []
