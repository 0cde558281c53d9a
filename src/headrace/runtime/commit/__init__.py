"""The commit: open, stage, commit and publish, on either kind of cluster."""

from __future__ import annotations

__all__: list[str] = []
