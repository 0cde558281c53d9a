"""Processes that carry one mark: found, held by their descriptors, ended, and proven gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Self

from headrace.connect.hosts.processes import carries, ending, has_ended, marked

__all__ = ["Family", "end_marked"]


class Family:
    """All processes that began with a mark among their variables.

    Whoever is about to end shows no variables any more, and cannot be found by its mark: who wants
    to wait for the end of a family looks at it before.

    Parameters
    ----------
    mark
        ``NAME=value``, as it stands among the variables.

    Examples
    --------
    >>> import subprocess
    >>> child = subprocess.Popen(["sleep", "10"], env=os.environ | {"MARK": "mine"})
    >>> with Family("MARK=mine") as family:
    ...     family.look()
    ...     family.have_ended(0.0), family.end(3.0), child.wait()
    (False, [], -9)
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._handles: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def __len__(self) -> int:
        return len(self._handles)

    def look(self) -> None:
        """Take in all that carry the mark now."""
        for pid in marked(self._mark):
            known = self._handles.get(pid)
            if known is None or has_ended(known):
                self._take(pid)

    def _take(self, pid: int) -> None:
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            if carries(pid, self._mark) is False:  # its number went to another one meanwhile
                os.close(handle)
                return
            if pid in self._handles:
                os.close(self._handles[pid])
            self._handles[pid] = handle

    def have_ended(self, patience: float) -> bool:
        """Tell whether all that were taken in have ended, or do so in so many seconds."""
        deadline = time.monotonic() + patience
        return all(
            has_ended(handle, max(0.0, deadline - time.monotonic()))
            for handle in self._handles.values()
        )

    def end(self, patience: float) -> list[int]:
        """Kill them all, and what they start meanwhile; give those that are not proven gone."""
        deadline = time.monotonic() + patience
        while True:
            self.look()
            self._kill()
            if not self.have_ended(deadline - time.monotonic()):
                return [pid for pid, handle in self._handles.items() if not has_ended(handle)]
            late = list(marked(self._mark))
            if not late or time.monotonic() > deadline:
                return late

    def _kill(self) -> None:
        for pid, handle in self._handles.items():
            # Where its number went to another process, the descriptor still means the one that was.
            if carries(pid, self._mark):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)


def end_marked(mark: str, patience: float = 3.0) -> tuple[int, list[int]]:
    """End all processes that carry a mark, what they start meanwhile, and who ends already.

    Returns
    -------
    ended, left
        How many are proven gone, and those that are not.
    """
    deadline = time.monotonic() + patience
    with Family(mark) as family:
        left = family.end(patience)
        ended = len(family) - len(left)
    # Whoever was killed a moment ago shows no mark any more, and is not gone yet.
    left += [pid for pid in ending() if not _ends(pid, deadline)]
    return ended, left


def _ends(pid: int, deadline: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        return has_ended(handle, max(0.0, deadline - time.monotonic()))
    finally:
        os.close(handle)
