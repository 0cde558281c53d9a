"""Levels that are noted, in place of those of the process that runs the tests."""

from __future__ import annotations

from headrace.connect.levels import Loggers

__all__ = ["NotedLevels"]


class NotedLevels(Loggers):
    """Sets nothing, and keeps what was to be set."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[str, str]] = []

    def set(self, name: str, level: str) -> list[str]:
        self.noted.append((name, level))
        return [name]
