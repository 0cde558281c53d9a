"""The users' functions: called for whole chunks, with errors that name record and line."""

from __future__ import annotations

__all__: list[str] = []
