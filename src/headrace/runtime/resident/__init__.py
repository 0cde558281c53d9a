"""Tasks that live as long as their epoch, and the channels between them and their driver."""

from __future__ import annotations

__all__: list[str] = []
