"""The port: connections, what they speak, and limits that hold under attack."""

from __future__ import annotations

__all__: list[str] = []
