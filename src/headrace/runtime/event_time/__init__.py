"""Event time: where it comes from, how it travels, and who holds it back."""

from __future__ import annotations

__all__: list[str] = []
