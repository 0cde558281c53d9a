"""What is said to those who look for a method where it is not."""

from __future__ import annotations

__all__ = ["no_method"]

_STEPS = {
    "Stream": ("KeyedStream", "what belongs to a key needs key_by(...) or group_by_key() first"),
    "KeyedStream": ("WindowedTable", "only what gathers by windows or joins by time has it"),
    "Table": ("Stream", "a table becomes a stream with to_stream()"),
    "WindowedTable": ("Stream", "a windowed table becomes a stream with to_stream()"),
    "WindowedStream": ("Stream", "aggregate first, for example with count(), then to_stream()"),
    "StreamJoin": ("Stream", "a join is made by apply(function)"),
    "TableLookup": ("Stream", "a join is made by apply(function)"),
}


def no_method(thing: object, name: str) -> AttributeError:
    """Make the error for a method that another step of the chain has.

    Caller: ``__getattr__`` of what stands in a chain, which type checkers do not see.
    """
    from headrace import streams

    message = f"{type(thing).__name__!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        for kind in type(thing).__mro__:
            owner, hint = _STEPS.get(kind.__name__, ("", ""))
            if owner and hasattr(getattr(streams, owner), name):
                message += f": {hint}"
                break
    return AttributeError(message, name=name, obj=thing)
