"""What is written to the terminal, and how every failure ends."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import FencedError, HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


# Numbers, sizes and times as tables for people show them.

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def number(count: int | None) -> str:
    """Return a number as text: empty for 0, and a dash for an unknown one.

    >>> number(1200), number(0), number(None)
    ('1,200', '', '–')
    """
    if count is None:
        return "–"
    return f"{count:,}" if count else ""


def length(span: timedelta | None) -> str:
    """Return a length of time as text; empty for zero and None.

    >>> length(timedelta(seconds=2.25)), length(timedelta(minutes=3)), length(None)
    ('2.2 s', '0:03:00', '')
    """
    if not span:
        return ""
    if span < timedelta(minutes=1):
        return f"{span.total_seconds():.1f} s"
    return str(timedelta(seconds=round(span.total_seconds())))


def ago(at: datetime, now: datetime) -> str:
    """Return how long ago something was, in one figure.

    >>> start = datetime(2026, 11, 21, 12)
    >>> [ago(start, start + timedelta(seconds=s)) for s in (0.4, 61, 7300, 200_000)]
    ['0 s ago', '1 min ago', '2 h ago', '2 d ago']
    """
    seconds = max(0.0, (now - at).total_seconds())
    for unit, span in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= span:
            return f"{seconds // span:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def moment(milliseconds: float) -> str:
    """Return a time, given in ms since 1970, as text by the clock of this machine."""
    return f"{datetime.fromtimestamp(milliseconds / 1000).astimezone():%Y-%m-%d %H:%M:%S}"


def short_driver(name: str) -> str:
    """Return the name of a driver, shortened to host and process id.

    >>> short_driver("laptop:4711@5f1c/4026531836/88/1a2b"), short_driver("mine")
    ('laptop:4711', 'mine')
    """
    return name.partition("@")[0]


def size(number_of_bytes: float) -> str:
    """Return a number of bytes as text; empty for 0.

    >>> size(0), size(20), size(3 << 20)
    ('', '20 B', '3.0 MiB')
    """
    left = number_of_bytes
    if not left:
        return ""
    for unit in _UNITS:
        if left < 1024 or unit == _UNITS[-1]:
            break
        left /= 1024
    return f"{left:.0f} {unit}" if unit == "B" else f"{left:.1f} {unit}"


_BUG_HINT = (
    "This is a fault in headrace. Run again with `headrace --debug ...` for the traceback, "
    "and report it with that."
)

#: Control characters of ASCII and Latin 1, and those that turn the direction of text.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: Errors of the system for a device that takes no more.
_OUTPUT_FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
#: Exit status of a job that goes on elsewhere.
_FENCED = 3


def terminal(*, error: bool = False) -> Console:
    """Return the console for results, or the one for everything else.

    It shows names and texts of others as they are: none is markup, none steers the terminal.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Terminal(Console):
        def render(self, *given: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*given, **options):
                text, style, control = segment
                yield segment if control else Segment(printable(text), style)

    return Terminal(stderr=error, highlight=False, soft_wrap=True, markup=False)


def printable(text: str) -> str:
    r"""Replace what would steer a terminal: control characters except new lines and tabs.

    >>> print(printable("\x1b]0;title\x07 caf\xe9 \u202e"))
    \x1b]0;title\x07 café \u202e
    """
    return _STEERING.sub(lambda found: repr(found[0])[1:-1], text)


def say(text: str) -> None:
    """Write one line about what happens, apart from the results."""
    sys.stderr.write(f"{printable(text)}\n")
    sys.stderr.flush()


def show(text: str) -> None:
    """Write one line of the results."""
    sys.stdout.write(f"{printable(text)}\n")


def message_line(key: object, body: bytes) -> str:
    r"""Return a message as key, tab, value; a terminal gets nothing that steers it.

    >>> message_line("k", b"to be"), message_line(None, b"\xff")
    ('k\tto be\n', '\t\\xff\n')
    """
    shown = "" if key is None else key
    line = f"{shown}\t{body.decode(errors='backslashreplace')}\n"
    return printable(line) if sys.stdout is not None and sys.stdout.isatty() else line


def report(error: BaseException, *, debug: bool) -> None:
    """Write what went wrong as one message: what, where, why and what to do."""
    from rich.text import Text

    if debug:
        traceback.print_exception(error)
    message, hints = _explain(error)
    text = Text.assemble(("error: ", "bold red"), message)
    for hint in hints:
        text.append("\n  → ", "cyan").append(hint)
    terminal(error=True).print(text, markup=False)


def flush_output() -> None:
    """Write what was held back: Python would do so at its end, and not report a failure.

    Raises
    ------
    OSError
        If the output takes nothing more.
    """
    if sys.stdout is None:  # closed by whoever started this
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if error.errno == errno.EPIPE:
            # The reader has seen enough.
            sys.exit(1)
        raise


def status_of(error: BaseException) -> int:
    """Return the exit status of a command that fails.

    >>> status_of(ValueError()), status_of(FencedError("another driver"))
    (1, 3)
    """
    return _FENCED if isinstance(error, FencedError) else 1


def _explain(error: BaseException) -> tuple[str, list[str]]:
    if not isinstance(error, HeadraceError):
        if isinstance(error, OSError) and error.filename is not None:
            return f"{error.filename}: {error.strerror}.", []
        if isinstance(error, OSError) and error.errno in _OUTPUT_FAILED:
            return f"cannot write the output: {error.strerror}.", []
        return f"{type(error).__name__}: {error}", [_BUG_HINT]
    messages: list[str] = []
    hints: list[str] = []
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while isinstance(cause, HeadraceError) and cause not in chain:
        chain.append(cause)
        # A wrapper often repeats its cause: then it is told once.
        if not any(cause.message in told for told in messages):
            messages.append(cause.message)
        if cause.hint is not None and cause.hint not in hints:
            hints.append(cause.hint)
        cause = cause.__cause__
    return "\nbecause: ".join(messages), hints


def debug_wanted() -> bool:
    """Return whether the environment asks for tracebacks."""
    return os.environ.get("HEADRACE_DEBUG", "") not in {"", "0"}
