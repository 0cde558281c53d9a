"""How cost grows with data: ``python -m benchmarks.growth [--picture FILE.svg]``."""

from __future__ import annotations

__all__: list[str] = []
