"""A result's window, from the properties in which it travels to a place beside the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.runtime.processors import Processor
from headrace.topology.windowed import WINDOW_END, WINDOW_START, WithWindow, windowed

if TYPE_CHECKING:
    from headrace.runtime.chunk import Chunk

__all__ = ["WithWindowProcessor"]


class WithWindowProcessor(Processor[WithWindow]):
    """Puts windows beside values."""

    def process(self, chunk: Chunk) -> Chunk:
        """Handle results of a window operator, which all have the properties."""
        headers = chunk.headers or []
        return chunk.with_values(
            [
                windowed(value, int(own[WINDOW_START]), int(own[WINDOW_END]))
                for value, own in zip(chunk.values, headers, strict=True)
                if own is not None
            ]
        )
