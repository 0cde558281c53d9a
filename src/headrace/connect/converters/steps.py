"""Steps: functions of one value, made once for a schema, and what they refuse a value with.

The forms of a converter share the steps of what holds other values, and of whole numbers; what is
wanted has its name in messages from the form, such as ``array`` or ``Avro's array``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

Step = Callable[[Any], Any]
"""One direction of one schema."""

_SHOWN = 80


class UnfitError(ValueError):
    """A value that a converter cannot write, or a body that it cannot read.

    Raised inside converters, which add topic and part of the record.

    Parameters
    ----------
    reason
        What is wrong, as the rest of a sentence.
    hint
        What to do about it.
    """

    def __init__(self, reason: str, *, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self._path: list[str] = []

    def inside(self, step: str) -> UnfitError:
        """Note that it happened inside a field (``name``), an item or a map's entry (``[2]``)."""
        self._path.append(step)
        return self

    @property
    def path(self) -> str:
        """Where it happened: ``address.lines[2]``; empty for the whole value.

        >>> UnfitError("").inside("[2]").inside("lines").inside("address").path
        'address.lines[2]'
        """
        steps = (step if step.startswith("[") else f".{step}" for step in reversed(self._path))
        return "".join(steps).removeprefix(".")

    def __str__(self) -> str:
        return f"at {self.path}: {self.reason}" if self._path else self.reason


def beginning(value: Any) -> str:
    """Show the start of a value.

    >>> beginning("a" * 1000)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    if isinstance(value, str | bytes):
        value = value[:_SHOWN]
    text = repr(value)
    return text if len(text) < _SHOWN else f"{text[:_SHOWN]}..."


def kind_of(value: Any) -> str:
    """Return the name of a value's type, for a message."""
    return "null" if value is None else type(value).__qualname__


def wrong(wanted: str, value: Any, *, hint: str | None = None) -> UnfitError:
    """Make the error for a value of another type than the wanted one."""
    return UnfitError(f"{wanted} is needed, not {kind_of(value)}", hint=hint)


def zoned(value: Any, wanted: str = "a timestamp") -> datetime:
    """Return a value that is a timestamp with a zone.

    Raises
    ------
    UnfitError
        It is none, or has no zone.
    """
    if not isinstance(value, datetime):
        raise wrong(wanted, value, hint="give a datetime.datetime with a zone")
    if value.tzinfo is None:
        reason = "a timestamp needs a zone"
        raise UnfitError(reason, hint="give it one: value.replace(tzinfo=UTC)")
    return value


def whole_number(wanted: str, bits: int) -> Step:
    """Make the step that takes whole numbers of so many bits.

    >>> whole_number("int8", 8)(-128)
    -128
    """
    high = (1 << bits - 1) - 1
    low = -high - 1

    def number(value: Any) -> int:
        # A bool is an int to Python, and no number to anybody else.
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
            raise wrong(wanted, value)
        if not low <= value <= high:
            reason = f"{value} is beyond the range of {wanted}"
            raise UnfitError(reason, hint="use a wider type in the schema")
        return int(value)

    return number


def array_of(step: Step, wanted: str = "array") -> Step:
    """Make the step of a list from the one of its items."""

    def array(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise wrong(wanted, value)
        done: list[Any] = []
        try:
            for one in value:
                done.append(step(one))  # noqa: PERF401 - how many are done says where it failed
        except UnfitError as error:
            raise error.inside(f"[{len(done)}]") from None
        return done

    return array


def pairs_of(
    key_step: Step, step: Step, wanted: str = "map"
) -> Callable[[Any], list[tuple[Any, Any]]]:
    """Make the step from a map to a list of pairs, from the ones of its keys and its values."""

    def pairs(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise wrong(wanted, value)
        return [entry(key_step, step, one, item) for one, item in value.items()]

    return pairs


def entry(key_step: Step, step: Step, one: Any, item: Any) -> tuple[Any, Any]:
    """Convert one entry of a map."""
    try:
        return key_step(one), step(item)
    except UnfitError as error:
        raise error.inside(f"[{one!r:.40}]") from None


def struct_of(steps: Iterable[tuple[str, Step]], wanted: str = "struct") -> Step:
    """Make the step of a struct, which has no other fields than these.

    >>> struct_of([("a", str), ("b", str)])({"a": 1})
    {'a': '1', 'b': 'None'}
    """
    fields = list(steps)
    names = frozenset(name for name, _ in fields)

    def struct(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong(wanted, value)
        if not names.issuperset(value):
            extra = next(one for one in value if one not in names)
            reason = f"the schema has no field {extra!r}"
            known = ", ".join(name for name, _ in fields)
            raise UnfitError(reason, hint=f"it has: {known or 'none'}")
        return fields_of(fields, value)

    return struct


def fields_of(steps: Iterable[tuple[str, Step]], value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert fields of a struct, of which those that are missing are null."""
    done = {}
    for name, step in steps:
        try:
            done[name] = step(value.get(name))
        except UnfitError as error:
            raise error.inside(name) from None
    return done
