"""Window operators at work."""

from __future__ import annotations

from headrace.runtime.windows.table import WINDOWS

__all__ = ["WINDOWS"]
