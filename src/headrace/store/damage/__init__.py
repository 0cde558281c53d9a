"""Damage in the files of a store: finding it, telling it, and fencing it off."""

from __future__ import annotations

__all__: list[str] = []
