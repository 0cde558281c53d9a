"""Kinds of values that a config key can have: how each is read from text, and written back."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NewType, Self, get_args, get_origin
from urllib.parse import quote, quote_plus

from headrace.durations import GRAMMAR, parse_duration, parse_size

# Checks of values: ranges, choices, shapes.


@dataclass(frozen=True, slots=True)
class Check:
    """Decides whether a value may stand, and says what may.

    >>> Check("even", lambda value: value % 2 == 0).allows(3)
    False
    """

    #: What a value must be, as the rest of "it must be ...".
    words: str
    #: Tells whether a value may stand.
    allows: Callable[[Any], bool]
    #: All values that may stand, where they can be listed.
    choices: Sequence[Any] = ()


def between(low: Any, high: Any) -> Check:
    """Allow values from low to high, both included.

    >>> between(1, 3).allows(3), between(1, 3).words
    (True, 'from 1 to 3')
    """
    return Check(f"from {_shown(low)} to {_shown(high)}", lambda value: low <= value <= high)


def at_least(low: Any) -> Check:
    """Allow values from low on."""
    return Check(f"at least {_shown(low)}", lambda value: value >= low)


def at_most(high: Any) -> Check:
    """Allow values up to high."""
    return Check(f"at most {_shown(high)}", lambda value: value <= high)


def _shown(bound: Any) -> str:
    if isinstance(bound, timedelta):
        return f"{bound / timedelta(milliseconds=1):.15g} ms"
    return str(bound)


def one_of(*values: Any, ignore_case: bool = False) -> Check:
    """Allow these values only.

    >>> one_of("append", "overwrite").words
    'append or overwrite'
    """
    *most, last = map(str, values)
    words = f"{', '.join(most)} or {last}" if most else last
    if not ignore_case:
        return Check(words, lambda value: value in values, values)
    lowered = {str(one).lower() for one in values}
    return Check(words, lambda value: str(value).lower() in lowered, values)


def matching(pattern: str, meaning: str = "") -> Check:
    """Allow texts that match a regular expression as a whole.

    >>> matching(r"[a-z]+", "lower-case letters").allows("ABC")
    False
    """
    words = meaning or f"of the shape {pattern}"
    return Check(words, lambda value: re.fullmatch(pattern, str(value)) is not None)


def not_empty() -> Check:
    """Allow what holds something."""
    return Check(
        "not empty", lambda value: bool(value.strip() if isinstance(value, str) else value)
    )


def each(check: Check) -> Check:
    """Allow lists whose items all pass a check."""
    words = f"a list of which each is {check.words}"
    return Check(words, lambda values: all(map(check.allows, values)), check.choices)


def all_of(*checks: Check) -> Check:
    """Allow what passes all these checks."""
    words = " and ".join(check.words for check in checks)
    return Check(words, lambda value: all(check.allows(value) for check in checks))


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
        raise ValueError("it is no whole number")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("it is no number") from None


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in {"true", "false"}:
        raise ValueError("it is neither true nor false")
    return lowered == "true"


def _duration(text: str) -> timedelta:
    # A bare number is milliseconds, as everywhere in Kafka Connect, where -1 may be "for ever".
    bare = re.fullmatch(r"\s*(-?[0-9]+(?:\.[0-9]+)?)\s*(?:ms)?\s*", text.lower())
    try:
        return timedelta(milliseconds=float(bare[1])) if bare else parse_duration(text)
    except OverflowError:
        raise ValueError("it is longer than a duration can be") from None
    except ValueError:
        raise ValueError(f"a duration is milliseconds, or {GRAMMAR}") from None


def _write_duration(value: timedelta) -> str:
    return f"{value / timedelta(milliseconds=1):.15g}"


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None


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
        raise TypeError(
            f"a config key cannot be a {declared!r}: there are {names} and PluginName(...)"
        )
    return found


def _list_of(item: ValueKind) -> ValueKind:
    def parse(text: str) -> list[Any]:
        return [item.parse(part) for part in _split(text)]

    def write(values: list[Any]) -> str:
        return ",".join(item.write(value) for value in values)

    return ValueKind("LIST", f"list of {item.words}, by commas", parse, write)
