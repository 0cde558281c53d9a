"""The name server: other brokers that register here, and registration with other name servers."""

from __future__ import annotations

__all__: list[str] = []
