"""The users' own processors: their states and timers in the operator's state store."""

from __future__ import annotations

from headrace.runtime.low_level.processor import PROCESSES

__all__ = ["PROCESSES"]
