"""Checks of values: ranges, choices, shapes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any


class Check(ABC):
    """Decides whether a value may stand, and says what may."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What a value must be, as the rest of "it must be ..."."""

    @abstractmethod
    def allows(self, value: Any) -> bool:
        """Whether the value may stand."""

    @property
    def choices(self) -> Sequence[Any]:
        """All values that may stand, where they can be listed."""
        return ()


@dataclass(frozen=True, slots=True)
class _Range(Check):
    low: Any
    high: Any

    @property
    def words(self) -> str:
        if self.high is None:
            return f"at least {_shown(self.low)}"
        if self.low is None:
            return f"at most {_shown(self.high)}"
        return f"from {_shown(self.low)} to {_shown(self.high)}"

    def allows(self, value: Any) -> bool:
        above = self.low is None or value >= self.low
        return bool(above and (self.high is None or value <= self.high))


@dataclass(frozen=True, slots=True)
class _OneOf(Check):
    values: tuple[Any, ...]
    ignore_case: bool

    @property
    def words(self) -> str:
        *most, last = map(str, self.values)
        return f"{', '.join(most)} or {last}" if most else last

    @property
    def choices(self) -> Sequence[Any]:
        return self.values

    def allows(self, value: Any) -> bool:
        if self.ignore_case:
            return str(value).lower() in {str(one).lower() for one in self.values}
        return value in self.values


@dataclass(frozen=True, slots=True)
class _Matching(Check):
    pattern: str
    meaning: str

    @property
    def words(self) -> str:
        return self.meaning or f"of the shape {self.pattern}"

    def allows(self, value: Any) -> bool:
        return re.fullmatch(self.pattern, str(value)) is not None


@dataclass(frozen=True, slots=True)
class _NotEmpty(Check):
    words: str = "not empty"

    def allows(self, value: Any) -> bool:
        return bool(value.strip() if isinstance(value, str) else value)


@dataclass(frozen=True, slots=True)
class _Each(Check):
    check: Check

    @property
    def words(self) -> str:
        return f"a list of which each is {self.check.words}"

    @property
    def choices(self) -> Sequence[Any]:
        return self.check.choices

    def allows(self, value: Any) -> bool:
        return all(self.check.allows(one) for one in value)


@dataclass(frozen=True, slots=True)
class _AllOf(Check):
    checks: tuple[Check, ...]

    @property
    def words(self) -> str:
        return " and ".join(check.words for check in self.checks)

    def allows(self, value: Any) -> bool:
        return all(check.allows(value) for check in self.checks)


def _shown(bound: Any) -> str:
    if isinstance(bound, timedelta):
        return f"{bound / timedelta(milliseconds=1):.15g} ms"
    return str(bound)


def between(low: Any, high: Any) -> Check:
    """Allow values from low to high, both included.

    >>> between(1, 3).allows(3), between(1, 3).words
    (True, 'from 1 to 3')
    """
    return _Range(low, high)


def at_least(low: Any) -> Check:
    """Allow values from low on."""
    return _Range(low, None)


def at_most(high: Any) -> Check:
    """Allow values up to high."""
    return _Range(None, high)


def one_of(*values: Any, ignore_case: bool = False) -> Check:
    """Allow these values only.

    >>> one_of("append", "overwrite").words
    'append or overwrite'
    """
    return _OneOf(values, ignore_case)


def matching(pattern: str, meaning: str = "") -> Check:
    """Allow texts that match a regular expression as a whole.

    >>> matching(r"[a-z]+", "lower-case letters").allows("ABC")
    False
    """
    return _Matching(pattern, meaning)


def not_empty() -> Check:
    """Allow what holds something."""
    return _NotEmpty()


def each(check: Check) -> Check:
    """Allow lists whose items all pass a check."""
    return _Each(check)


def all_of(*checks: Check) -> Check:
    """Allow what passes all these checks."""
    return _AllOf(checks)
