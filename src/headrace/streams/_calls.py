"""What the front door learns from a call: the user's line, and whether a function fits."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.errors import TopologyError
from headrace.topology import Origin

__all__ = ["Caller", "caller", "check_function"]

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


def check_function(
    label: str, function: object, parameters: tuple[str, ...], origin: Origin
) -> None:
    """Refuse what cannot be called with an operator's arguments.

    Raises
    ------
    TopologyError
        It is not callable, takes other arguments, or is a coroutine function.
    """
    call = f"function({', '.join(parameters)})"
    if not callable(function):
        raise TopologyError(
            f"{label} at {origin} needs a function, not {function!r:.100}",
            hint=f"it is called as {call}",
        )
    if inspect.iscoroutinefunction(function):
        raise TopologyError(
            f"{label} at {origin} cannot await {_name(function)}, a coroutine function",
            hint="operators run in plain Python workers: pass an ordinary function",
        )
    if not _accepts(function, len(parameters)):
        raise TopologyError(
            f"{label} at {origin} calls {call}, which {_name(function)} does not accept",
            hint=f"give it {len(parameters)} positional parameter"
            + ("s" if len(parameters) > 1 else ""),
        )


def _accepts(function: Callable[..., Any], count: int) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return str(name).rpartition("<locals>.")[2]
