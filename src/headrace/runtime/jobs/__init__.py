"""Jobs seen from outside: where they stand, what they did, and how to set one back or end it."""

from __future__ import annotations

__all__: list[str] = []
