"""The little language in which cases say how keys and values are made."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(?:'([^']*)'|(\d+)|(i|offset|mod|div)\b|([+()%]))")


def evaluate(text: str, i: int, offset: int) -> str:
    """Compute texts like ``'k'+i`` and ``i mod 10 as decimal text``."""
    source = text.removesuffix("as decimal text").strip()
    tokens: list[tuple[str, ...]] = []
    at = 0
    while at < len(source):
        match = _TOKEN.match(source, at)
        assert match is not None, f"this runner does not understand {text!r}"
        tokens.append(tuple(group or "" for group in match.groups()))
        at = match.end()
    return str(_Expression(tokens, {"i": i, "offset": offset}).sum())


class _Expression:
    def __init__(self, tokens: list[tuple[str, ...]], names: dict[str, int]) -> None:
        self._tokens = tokens
        self._names = names

    def sum(self) -> str | int:
        total = self._product()
        while self._take(3, "+"):
            more = self._product()
            both = isinstance(total, int) and isinstance(more, int)
            total = int(total) + int(more) if both else f"{total}{more}"
        return total

    def _product(self) -> str | int:
        value = self._atom()
        while True:
            operation: Callable[[int, int], int]
            if self._take(2, "mod") or self._take(3, "%"):
                operation = int.__mod__
            elif self._take(2, "div"):
                operation = int.__floordiv__
            else:
                return value
            value = operation(int(value), int(self._atom()))

    def _atom(self) -> str | int:
        assert self._tokens, "an expression ends too early"
        if self._take(3, "("):
            value = self.sum()
            assert self._take(3, ")"), "a bracket is not closed"
            return value
        text, number, name, sign = self._tokens.pop(0)
        assert not sign, f"{sign!r} stands where a value should"
        if number:
            return int(number)
        return self._names[name] if name else text

    def _take(self, kind: int, wanted: str) -> bool:
        if self._tokens and self._tokens[0][kind] == wanted:
            self._tokens.pop(0)
            return True
        return False
