"""What a value or a body that does not fit is reported with: why, and where inside it."""

from __future__ import annotations

from typing import Any

__all__ = ["UnfitError", "beginning", "kind_of"]

_SHOWN = 80


class UnfitError(ValueError):
    """A value that a converter cannot write, or a body that it cannot read.

    Raised inside converters, which add topic and part of the record.

    Parameters
    ----------
    reason
        What is wrong, as the rest of a sentence.
    hint
        What to do about it.
    """

    def __init__(self, reason: str, *, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self._path: list[str] = []

    def inside(self, step: str) -> UnfitError:
        """Say that it happened inside a field (``name``), an item or a map's entry (``[2]``)."""
        self._path.append(step)
        return self

    @property
    def path(self) -> str:
        """Where it happened: ``address.lines[2]``; empty for the whole value.

        >>> UnfitError("").inside("[2]").inside("lines").inside("address").path
        'address.lines[2]'
        """
        steps = (step if step.startswith("[") else f".{step}" for step in reversed(self._path))
        return "".join(steps).removeprefix(".")

    def __str__(self) -> str:
        return f"at {self.path}: {self.reason}" if self._path else self.reason


def beginning(value: Any) -> str:
    """Show the start of a value.

    >>> beginning("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    if isinstance(value, str | bytes):
        value = value[:_SHOWN]
    text = repr(value)
    return text if len(text) < _SHOWN else f"{text[:_SHOWN]}..."


def kind_of(value: Any) -> str:
    """Name the type of a value for a message."""
    return "null" if value is None else type(value).__qualname__
