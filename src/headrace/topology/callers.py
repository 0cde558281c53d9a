"""The place in the user's program from which a front door is called."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.topology.operators.core import Origin

_OWN_FOLDER = str(Path(__file__).parents[1])


class Caller:
    """The place in the user's program from which an operator is added.

    Parameters
    ----------
    frame
        The frame that called into Headrace.
    """

    def __init__(self, frame: FrameType) -> None:
        self.origin = Origin(frame.f_code.co_filename, frame.f_lineno)
        self.names: dict[str, Any] = dict(frame.f_locals)


def caller() -> Caller:
    """Find the nearest frame outside Headrace."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack reads every source file on the way
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.f_back
    return Caller(frame)
