"""Kinds of values that a config key can have: how each is read from text, and written back."""

from __future__ import annotations

import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NewType, Self, get_args, get_origin
from urllib.parse import quote, quote_plus

from headrace.durations import GRAMMAR, parse_duration, parse_size

# Checks of values: ranges, choices, shapes.


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


# Secrets: values that nothing prints.

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
        """Return the text itself, for the one place that needs it."""
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


# Hiding secrets in whatever is shown: logs, causes, answers, headers of dead letters.

# A shorter secret would take half of every text with it.
_SHORTEST = 4
#: One learns at a time: several threads of a host may have one masking in common.
_learning = threading.Lock()


class Masking:
    """Writes stars over secrets, wherever a text has them.

    Also as programs quote them: in a ``repr``, in JSON, in a URL, or line by line.

    Examples
    --------
    >>> masking = Masking(["sword'fish"])
    >>> masking("password=sword'fish: refused")
    'password=********: refused'
    >>> masking("postgres://me:sword%27fish@db")
    'postgres://me:********@db'
    >>> masking.learn(["trout"])
    >>> masking("sword'fish, trout")
    '********, ********'
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        # Replaced as a whole, so that any thread may read it.
        self._spellings: tuple[str, ...] = ()
        self.learn(secrets)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Take the secrets of a typed config."""
        masking = cls()
        masking.learn_typed(values)
        return masking

    def learn(self, secrets: Iterable[str]) -> None:
        """Hide these, too; what is shorter than four characters stays."""
        more = {one for secret in secrets for one in _spellings(secret)}
        with _learning:
            known = more.union(self._spellings)
            # The longest first: one may be a part of another.
            self._spellings = tuple(sorted(known, key=lambda one: (-len(one), one)))

    def learn_typed(self, values: Mapping[str, Any]) -> None:
        """Hide the secrets of a typed config, too."""
        self.learn(one.reveal() for one in values.values() if isinstance(one, Secret))

    def __call__(self, text: str) -> str:
        """Return the text without secrets."""
        for secret in self._spellings:
            text = text.replace(secret, MASK)
        return text


def _spellings(secret: str) -> Iterator[str]:
    """Yield the ways in which programs write a secret."""
    whole = secret.strip()
    if len(whole) < _SHORTEST:
        return
    yield from (whole, repr(whole)[1:-1], repr(whole.encode())[2:-1], json.dumps(whole)[1:-1])
    yield from (quote(whole), quote(whole, safe=""), quote_plus(whole))
    yield from (line for line in map(str.strip, whole.splitlines()) if len(line) >= _SHORTEST)


Size = NewType("Size", int)
"""A number of bytes, written ``65536``, ``64 KiB`` or ``10 MB``."""


@dataclass(frozen=True, slots=True)
class PluginName:
    """The kind of a key that names a plugin: ``key("reader", PluginName("converters"), ...)``."""

    kind: PluginKind


PluginKind = str
"""``connectors``, ``converters``, ``header_converters``, ``transforms`` or ``predicates``."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How values of one kind are read and written.

    Parameters
    ----------
    kafka
        The type that Kafka Connect's REST API calls it.
    words
        What a value looks like, for people.
    parse
        Reads a text; raises ``ValueError`` with what is wrong.
    write
        Writes a value as such a text.
    """

    kafka: str
    words: str
    parse: Callable[[str], Any]
    write: Callable[[Any], str] = str


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", text.strip()):
        message = "it is no whole number"
        raise ValueError(message)
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        message = "it is no number"
        raise ValueError(message) from None


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in {"true", "false"}:
        message = "it is neither true nor false"
        raise ValueError(message)
    return lowered == "true"


def _duration(text: str) -> timedelta:
    # A bare number is milliseconds, as everywhere in Kafka Connect, where -1 may be "for ever".
    bare = re.fullmatch(r"\s*(-?[0-9]+(?:\.[0-9]+)?)\s*(?:ms)?\s*", text.lower())
    try:
        return timedelta(milliseconds=float(bare[1])) if bare else parse_duration(text)
    except OverflowError:
        raise ValueError("it is longer than a duration can be") from None
    except ValueError:
        message = f"a duration is milliseconds, or {GRAMMAR}"
        raise ValueError(message) from None


def _write_duration(value: timedelta) -> str:
    return f"{value / timedelta(milliseconds=1):.15g}"


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        message = f"it is no regular expression: {error}"
        raise ValueError(message) from None


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text.strip() else []


_STRING = ValueKind("STRING", "text", str)
_KINDS: dict[Any, ValueKind] = {
    str: _STRING,
    int: ValueKind("INT", "whole number", _integer),
    float: ValueKind("DOUBLE", "number", _number, repr),
    bool: ValueKind("BOOLEAN", "true or false", _boolean, lambda value: str(value).lower()),
    timedelta: ValueKind("LONG", "duration", _duration, _write_duration),
    Size: ValueKind("LONG", "size", parse_size),
    Path: ValueKind("STRING", "path", Path),
    Secret: ValueKind("PASSWORD", "secret", Secret, lambda _: MASK),
    re.Pattern: ValueKind(
        "STRING", "regular expression", _pattern, lambda value: str(value.pattern)
    ),
    list: ValueKind("LIST", "list, by commas", _split, ",".join),
}


def kind_of(declared: Any) -> ValueKind:
    """Return the kind of what a key was declared as.

    Raises
    ------
    TypeError
        When there is none; the message lists those that there are.

    Examples
    --------
    >>> kind_of(int).parse("12")
    12
    >>> kind_of(list[int]).parse("1, 2")
    [1, 2]
    """
    if isinstance(declared, PluginName):
        return ValueKind("CLASS", f"name of one of the {declared.kind}", str.strip)
    if get_origin(declared) is list:
        return _list_of(kind_of(get_args(declared)[0]))
    found = _KINDS.get(get_origin(declared) or declared)
    if found is None:
        names = ", ".join(getattr(one, "__name__", str(one)) for one in _KINDS)
        message = f"a config key cannot be a {declared!r}: there are {names} and PluginName(...)"
        raise TypeError(message)
    return found


def _list_of(item: ValueKind) -> ValueKind:
    def parse(text: str) -> list[Any]:
        return [item.parse(part) for part in _split(text)]

    def write(values: list[Any]) -> str:
        return ",".join(item.write(value) for value in values)

    return ValueKind("LIST", f"list of {item.words}, by commas", parse, write)
