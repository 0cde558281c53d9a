"""The health probe of a unit: asked every now and then, in a thread that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.connect.handling.retrying import is_retriable
from headrace.connect.hosts.causes import cause_of, outage_of

__all__ = ["Probe"]


class Probe:
    """Asks ``healthy()``.

    Parameters
    ----------
    who
        Names the unit.
    healthy
        The plugin's probe.
    patience
        Seconds that it may take to answer.
    mask
        Hides secrets in what it raises.

    Examples
    --------
    >>> Probe("task 0 of connector 'a'", lambda: False, patience=5.0).ask()
    'healthy() said no'
    >>> Probe("task 0 of connector 'a'", lambda: True, patience=5.0).ask()
    ''
    """

    def __init__(
        self,
        who: str,
        healthy: Callable[[], bool],
        patience: float,
        mask: Callable[[str], str] = str,
    ) -> None:
        self._who = who
        self._mask = mask
        self._healthy = healthy
        self._patience = patience
        self._answered = threading.Event()
        self._asking = False
        self._reason = ""
        #: Whether what it said last passes by itself: the unit waits for something outside.
        self.passes = False

    def ask(self) -> str:
        """Give the reason why the unit is not healthy; an empty text: it is."""
        if not self._asking:
            self._asking = True
            self._answered.clear()
            threading.Thread(target=self._call, name="headrace-probe-call", daemon=True).start()
        # One that hangs is not asked twice: its one answer is awaited again.
        if not self._answered.wait(self._patience):
            self.passes = False
            return f"healthy() has not answered for {self._patience:g} s"
        self._asking = False
        return self._reason

    def _call(self) -> None:
        passes = False
        try:
            self._reason = "" if self._healthy() else "healthy() said no"
        except BaseException as error:  # noqa: BLE001 - plugin code may raise anything
            passes = is_retriable(error)
            self._reason = (
                outage_of(error, "healthy()", self._mask)
                if passes
                else cause_of(error, self._who, "healthy()", self._mask)["summary"]
            )
        self.passes = passes
        self._answered.set()
