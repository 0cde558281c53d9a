"""Functions of cases: named in words, or written in the small language of expressions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace import Accumulator
from tests.streams.cases.expressions import Expression, expression

__all__ = ["Folds", "OfRecord", "Pairs", "absent", "function", "identity", "selector", "selects"]

_NON_WORD = re.compile(r"\W+")
_OWN_VALUE = ("", "v", "value", "word", "id", "identity", "v -> v")
_ARROW = re.compile(r"^\s*(?:\(([^()]*)\)|(\w+))\s*->")


def identity(value: Any) -> Any:
    """Give what is taken."""
    return value


def absent(value: Any) -> bool:
    """Tell whether there is no value."""
    return value is None


def lower_words(text: str) -> list[str]:
    """Split a text into words in small letters."""
    return [word for word in _NON_WORD.split(text.lower()) if word]


#: Functions that cases describe in words.
_PHRASES: dict[str, Callable[[Any], Any]] = {
    "lower, split on non-word": lower_words,
    "split on non-word": lambda text: [word for word in _NON_WORD.split(text) if word],
    "split": str.split,
    "split on space": str.split,
    "split on spaces": str.split,
    "words": str.split,
    "lower": str.lower,
    "lower case": str.lower,
    "upper": str.upper,
    "upper case": str.upper,
}


@dataclass(frozen=True, slots=True)
class OfRecord:
    """A function of key and value."""

    function: Expression

    def __call__(self, key: Any, value: Any) -> Any:
        """Compute it."""
        return self.function(key, value)


@dataclass(frozen=True, slots=True)
class Pairs:
    """A function of key and value that gives the new key with the same value."""

    selector: Expression

    def __call__(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Give the new key and the value."""
        return self.selector(key, value), value


@dataclass(frozen=True, slots=True)
class Folds:
    """Makes accumulators that fold values one by one, beginning with a first one."""

    first: Any
    step: Expression

    def __call__(self) -> Folded:
        """Make one."""
        return Folded(self.first, self.step)


class Folded(Accumulator[Any, Any]):
    """What was folded so far."""

    def __init__(self, first: Any, step: Expression) -> None:
        self.so_far = first
        self._step = step

    def add(self, value: Any) -> None:
        """Fold a value into it."""
        self.so_far = self._step(self.so_far, value)

    def result(self) -> Any:
        """Give what was folded."""
        return self.so_far

    def state(self) -> Any:
        """Give what is kept."""
        return {"so_far": self.so_far}


def selects(text: str | None) -> bool:
    """Tell whether an argument names more than the value itself."""
    return (text or "").strip() not in _OWN_VALUE


def function(text: str | None) -> Callable[..., Any]:
    """Read a function of a value, or of key and value: ``v -> v+1``, ``(k, v) -> k``, ``k != 'a'``."""
    text = (text or "").strip()
    if not selects(text):
        return identity
    if text in _PHRASES:
        return _PHRASES[text]
    names = _names(text)
    if names is None:
        read = expression(text, ["k", "v"])
        return OfRecord(read) if read.uses("k") else expression(text, ["v"])
    return OfRecord(expression(text, names)) if len(names) == 2 else expression(text, ["v"])


def selector(text: str) -> Expression:
    """Read a function of key and value whatever it is written as."""
    names = _names(text)
    if names is None:
        return expression(text, ["k", "v"])
    if len(names) == 2:
        return expression(text, names)
    return Expression(("k", *names), expression(text, ["v"]).body)


def _names(text: str) -> list[str] | None:
    """Name the parameters that stand before an arrow; None where there is no arrow."""
    found = _ARROW.match(text)
    if found is None:
        return None
    return [name.strip() for name in (found[1] or found[2] or "").split(",")]
