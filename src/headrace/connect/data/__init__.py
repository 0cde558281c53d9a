"""The data plane: one streaming query per task, in an engine of its own process."""

from __future__ import annotations

from headrace.connect.data.plane import DataPlane
from headrace.connect.data.process import EngineProcess

__all__ = ["DataPlane", "EngineProcess"]
