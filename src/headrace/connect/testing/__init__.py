"""What tests of plugins and of the runtime need."""

from __future__ import annotations

__all__: list[str] = []
