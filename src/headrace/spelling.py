"""Names that were written a little differently from the one that was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

#: How much of two names must be alike to ask whether the one was meant, and to be sure that it was.
_ALIKE, _SURE = 0.6, 0.85


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = "", *, surely: bool = False
) -> str:
    """Return the question whether the known name was meant that looks most like one.

    Where none looks like it, return what to say instead.  Upper and lower case are alike.

    Parameters
    ----------
    surely
        Whether to ask only where the name is surely a misspelling, as it may be somebody's own.

    Examples
    --------
    >>> did_you_mean("pirce", ["price", "name"]), did_you_mean("x", ["price"], "there is 'price'")
    ("did you mean 'price'?", "there is 'price'")
    >>> known = ["batch.max.rows"]
    >>> [did_you_mean(name, known, surely=True) for name in ("batch.Max.row", "batch.rows")]
    ["did you mean 'batch.max.rows'?", '']
    """
    low, names = name.lower(), {one.lower(): one for one in known}
    # Letters that changed places make short words look very different.
    swapped = [one for one in names if sorted(one) == sorted(low)]
    cutoff = _SURE if surely else _ALIKE
    near = swapped or difflib.get_close_matches(low, names, n=1, cutoff=cutoff)
    return f"did you mean '{names[near[0]]}'?" if near else otherwise
