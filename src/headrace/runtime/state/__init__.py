"""State of operators: stores, their topics, and all that is done with them between batches."""

from __future__ import annotations

__all__: list[str] = []
