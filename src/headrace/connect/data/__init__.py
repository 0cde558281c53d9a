"""The data plane: one streaming query per task, in an engine of its own process."""

from __future__ import annotations

from headrace.connect.data.plane import DataPlane, EngineProcess

__all__ = ["DataPlane", "EngineProcess"]
