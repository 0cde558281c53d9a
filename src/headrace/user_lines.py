"""The line of the user's own program in which a failure began."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["user_line"]

_OWN_FOLDER = str(Path(__file__).parent)


def user_line(error: BaseException, function: Callable[..., Any] | None = None) -> str | None:
    """Name the line of the user's program that raised, with its text.

    None where no code of the user's took part, as in a sum of texts.
    """
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(function, "__code__", None)
    foreign = [frame for frame in frames if not frame.filename.startswith(_OWN_FOLDER)]
    own = [frame for frame in foreign if code is not None and frame.filename == code.co_filename]
    for candidates in (own, foreign):
        if candidates:
            frame = candidates[-1]
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}".rstrip()
    if code is not None and not code.co_filename.startswith(_OWN_FOLDER):
        return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"
    return None
