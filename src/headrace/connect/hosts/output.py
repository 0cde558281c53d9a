"""What processes of Connect print and log: in files that do not grow for ever, without secrets."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

__all__ = ["MaskedStream", "cut_log", "mask_output", "open_log"]

#: A log is cut when it is longer than the first; the second is what stays of it, bytes.
_MOST, _KEPT = 16 << 20, 1 << 20


def open_log(path: Path) -> BinaryIO:
    """Open a file that a process prints into, behind what it has, of which the end is kept."""
    log = path.open("a+b", buffering=0)
    cut_log(log.fileno())
    return log


def cut_log(log: int) -> None:
    """Cut a file of :func:`open_log` that has grown long to its end, whoever prints meanwhile."""
    # What the disk refuses now it may do at the next look.
    with contextlib.suppress(OSError):
        size = os.fstat(log).st_size
        if size > _MOST:
            end = os.pread(log, _KEPT, size - _KEPT)
            os.ftruncate(log, 0)
            os.write(log, b"... (the beginning was cut)\n" + end)


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
