"""Why a unit failed, in one line: what, where in the user's own code, why."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from headrace.user_lines import user_line

_LONGEST = 500


def first_line(text: str) -> str:
    r"""Return the first line of a text, cut where it is very long.

    >>> first_line("no\nyes")
    'no'
    """
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def cause_of(
    error: BaseException, who: str, where: str, mask: Callable[[str], str] = str
) -> dict[str, str]:
    """Describe an error of plugin code as the ``summary`` and the ``trace`` of a cause.

    Parameters
    ----------
    error
        What was raised.
    who
        The unit: ``task 0 of connector 'orders'``.
    where
        What was called: ``poll()``.
    mask
        Hides secrets: before anything is cut, as a part of one tells something, too.

    Examples
    --------
    >>> cause_of(ValueError("no such table"), "task 0 of connector 'a'", "start()")["summary"]
    "task 0 of connector 'a' failed in start(): ValueError: no such table"
    """
    why = first_line(mask("".join(traceback.format_exception_only(error))))
    if (text := str(error)) and type(error).__module__ != "builtins":
        # The module of an error says less than its name and its text.
        why = f"{type(error).__name__}: {first_line(mask(text))}"
    # What could not be imported is told by an error of ours, caused by the user's own.
    line = user_line(error) or (error.__cause__ and user_line(error.__cause__))
    at = f", at {line}" if line else ""
    summary = f"{who} failed in {where}: {why}{at}"
    return {"summary": summary, "trace": mask("".join(traceback.format_exception(error)))}


def outage_of(error: BaseException, where: str, mask: Callable[[str], str] = str) -> str:
    """Say what a unit waits for whose call is tried again.

    >>> outage_of(ConnectionError("nobody answers"), "flush()")
    'what it reaches, in flush(): nobody answers'
    """
    return f"what it reaches, in {where}: {first_line(mask(str(error)))}"


def end_of_log(path: Path, most: int = 16_000) -> str:
    """Return the last lines that a host wrote to its standard output and error."""
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            begin = max(0, log.tell() - most)
            log.seek(begin)
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    return text.partition("\n")[2] if begin else text
