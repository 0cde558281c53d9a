"""Secrets: values that nothing prints."""

from __future__ import annotations

__all__ = ["MASK", "Secret"]

MASK = "********"


class Secret:
    """A text that is never shown: not by ``print``, in a log, a traceback or an answer.

    Examples
    --------
    >>> password = Secret("swordfish")
    >>> print(password, [password], f"{password}")
    ******** [Secret(********)] ********
    >>> password.reveal()
    'swordfish'
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Give the text itself, for the one place that needs it."""
        return self._text

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)
