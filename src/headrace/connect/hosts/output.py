"""What a host prints and logs, with its secrets hidden before they reach the file."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable
from typing import TextIO

__all__ = ["MaskedStream", "mask_output"]


class MaskedStream(io.TextIOBase):
    r"""Passes whole lines on, each through a mask.

    Parameters
    ----------
    under
        Where they go.
    mask
        Hides what must not be seen.

    Examples
    --------
    >>> under = io.StringIO()
    >>> stream = MaskedStream(under, lambda text: text.replace("swordfish", "***"))
    >>> print("the word is sword", end="", file=stream)
    >>> print("fish", file=stream)
    >>> under.getvalue()
    'the word is ***\n'
    """

    def __init__(self, under: TextIO, mask: Callable[[str], str]) -> None:
        self._under = under
        self._mask = mask
        self._rest = ""
        self._writing = threading.Lock()

    def write(self, text: str) -> int:
        """Pass on what makes whole lines, and keep the rest."""
        with self._writing:
            lines, end, self._rest = (self._rest + text).rpartition("\n")
            if end:
                self._pass_on(lines + end)
        return len(text)

    def flush(self) -> None:
        """Pass on what is there of the last line, too."""
        with self._writing:
            rest, self._rest = self._rest, ""
            self._pass_on(rest)

    def _pass_on(self, text: str) -> None:
        self._under.write(self._mask(text))
        # A host may end at any moment, without a word.
        self._under.flush()

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def fileno(self) -> int:
        """Give the descriptor below, for what is not Python's."""
        return self._under.fileno()


def mask_output(mask: Callable[[str], str]) -> None:
    """Hide what must not be seen in all that this process prints and logs from now on."""
    sys.stdout = MaskedStream(sys.__stdout__ or io.StringIO(), mask)
    sys.stderr = MaskedStream(sys.__stderr__ or io.StringIO(), mask)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
