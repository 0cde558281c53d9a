"""The line of the user's own program in which a failure began."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_OWN_FOLDER = str(Path(__file__).parent)


def is_ours(filename: str) -> bool:
    """Return whether a file belongs to this package."""
    return filename.startswith(_OWN_FOLDER)


def user_line(error: BaseException, function: Callable[..., Any] | None = None) -> str | None:
    """Return the line of the user's program that raised, with its text.

    It is None where no code of the user took part, as in a sum of texts.
    """
    return _line(traceback.extract_tb(error.__traceback__), function)


def line_of_stack(
    frame: FrameType | None, function: Callable[..., Any] | None = None
) -> str | None:
    """Return the line of the user's program that a thread is at, by its innermost frame."""
    frames = traceback.StackSummary.extract(traceback.walk_stack(frame))[::-1]
    ours = [at for at, one in enumerate(frames) if is_ours(one.filename)]
    # Whoever called us is not the user: Spark's worker, for example.
    return _line(frames[ours[0] :] if ours else frames, function)


def _line(frames: list[traceback.FrameSummary], function: Callable[..., Any] | None) -> str | None:
    code = getattr(function, "__code__", None)
    foreign = [frame for frame in frames if not is_ours(frame.filename)]
    own = [frame for frame in foreign if code is not None and frame.filename == code.co_filename]
    for candidates in (own, foreign):
        if candidates:
            frame = candidates[-1]
            return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}".rstrip()
    if code is not None and not is_ours(code.co_filename):
        return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"
    return None
