"""A broker's part in replication: primary or follower, promotion, and rebuilding what a log lacks."""

from __future__ import annotations

__all__: list[str] = []
