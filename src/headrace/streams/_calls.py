"""What the front door learns from a call: the user's line, and whether a function fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from headrace.errors import TopologyError
from headrace.serdes.messages import required_parameters
from headrace.topology import Origin, RecordFunction
from headrace.topology.callers import Caller, caller

__all__ = [
    "Caller",
    "accepts",
    "caller",
    "check_function",
    "check_record_function",
    "record_function",
]


def check_record_function(
    label: str, function: object, origin: Origin, *, awaits: bool = False
) -> bool:
    """Refuse what takes neither a value nor key and value; tell whether it takes the key.

    A function with two required positional parameters takes key and value, any other the value.

    Raises
    ------
    TopologyError
        It is not callable, takes other arguments, or is a coroutine function where none is
        awaited.
    """
    takes_key = callable(function) and required_parameters(function) == 2
    parameters = ("key", "value") if takes_key else ("value",)
    check_function(label, function, parameters, origin, awaits=awaits)
    return takes_key


def record_function(label: str, function: Callable[..., Any], origin: Origin) -> RecordFunction:
    """Make a part of an operator of a function of the value, or of key and value."""
    return RecordFunction(function, check_record_function(label, function, origin))


def check_function(
    label: str,
    function: object,
    parameters: tuple[str, ...],
    origin: Origin,
    *,
    awaits: bool = False,
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
    if inspect.iscoroutinefunction(function) and not awaits:
        raise TopologyError(
            f"{label} at {origin} cannot await {_name(function)}, a coroutine function",
            hint="pass an ordinary function, or call it with map_async",
        )
    if not accepts(function, len(parameters)):
        raise TopologyError(
            f"{label} at {origin} calls {call}, which {_name(function)} does not accept",
            hint=f"give it {len(parameters)} positional parameter"
            + ("s" if len(parameters) > 1 else ""),
        )


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Tell whether a function can be called with so many arguments."""
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
