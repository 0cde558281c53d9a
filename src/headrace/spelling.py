"""Names that were written a little differently from the one that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: How much of two names must be alike to ask whether the one was meant, and to be sure that it was.
_ALIKE, _SURE = 0.6, 0.85


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the question whether the known name was meant that looks most like one.

    Where none looks like it, return what to say instead.

    >>> did_you_mean("pirce", ["price", "name"]), did_you_mean("x", ["price"], "there is 'price'")
    ("did you mean 'price'?", "there is 'price'")
    """
    near = nearest(name, known)
    return otherwise if near is None else f"did you mean '{near}'?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that looks most like one; ``None``: none looks like it."""
    return _most_alike(name, known, _ALIKE)


def typo_of(name: str, known: Iterable[str]) -> str | None:
    """Return the known name of which one is surely a misspelling; ``None``: it may be somebody's.

    >>> typo_of("batch.max.row", ["batch.max.rows"]), typo_of("batch.rows", ["batch.max.rows"])
    ('batch.max.rows', None)
    """
    return _most_alike(name, known, _SURE)


def _most_alike(name: str, known: Iterable[str], least: float) -> str | None:
    known = list(known)
    # Letters that changed places make short words look very different.
    swapped = [one for one in known if sorted(one) == sorted(name.lower())]
    found = swapped or difflib.get_close_matches(name, known, n=1, cutoff=least)
    return found[0] if found else None
