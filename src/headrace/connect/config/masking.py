"""Hiding secrets in whatever is shown: logs, causes, answers, headers of dead letters."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote, quote_plus

from headrace.connect.config.secret import MASK, Secret

__all__ = ["Masking"]

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
        """Give the text without secrets."""
        for secret in self._spellings:
            text = text.replace(secret, MASK)
        return text


def _spellings(secret: str) -> Iterator[str]:
    """Give the ways in which programs write a secret."""
    whole = secret.strip()
    if len(whole) < _SHORTEST:
        return
    yield from (whole, repr(whole)[1:-1], repr(whole.encode())[2:-1], json.dumps(whole)[1:-1])
    yield from (quote(whole), quote(whole, safe=""), quote_plus(whole))
    yield from (line for line in map(str.strip, whole.splitlines()) if len(line) >= _SHORTEST)
