"""What connectors and tasks have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.connect.config import Config


class Unit:
    """Something that runs in a process of its own: a connector or a task.

    One instance runs per generation, and one thread calls all its methods.
    """

    def start(self, config: Config) -> None:
        """Open what is needed; called once."""

    def stop(self) -> None:
        """Let go of everything; called once, after the last call of any other method."""

    def healthy(self) -> bool:
        """Whether it can work; three times ``False`` puts it into ERROR."""
        return True
