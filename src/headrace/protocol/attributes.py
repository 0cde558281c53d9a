"""Attributes of topics: the string that changes them, and what it may say.

The string is a comma-joined list of ``+key=value`` (add or alter) and ``-key`` (delete).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.errors import InvalidParameterError

CLEANUP_POLICY = "cleanup.policy"
#: RocketMQ answers a wrong attribute with SYSTEM_ERROR, not with INVALID_PARAMETER.
_NUMBER = 1


@dataclass(frozen=True, slots=True)
class _Attribute:
    accepts: Callable[[str], bool]
    #: What it accepts, for messages.
    values: str
    changeable: bool


def _one_of(*values: str, changeable: bool) -> _Attribute:
    return _Attribute(values.__contains__, ", ".join(values), changeable)


def _is_time(value: str) -> bool:
    return value == "-1" or (value.isascii() and value.isdigit() and len(value) < 19)


_ATTRIBUTES = {
    "queue.type": _one_of("SimpleCQ", "BatchCQ", changeable=False),
    CLEANUP_POLICY: _one_of("DELETE", "COMPACTION", changeable=False),
    "message.type": _one_of(
        "UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", changeable=True
    ),
    "reserve.time": _Attribute(_is_time, "a number of milliseconds, or -1", changeable=True),
}


def write_attributes(attributes: Mapping[str, str]) -> str:
    """Write the string that gives a new topic its attributes.

    >>> write_attributes({"cleanup.policy": "COMPACTION"})
    '+cleanup.policy=COMPACTION'
    """
    return ",".join(f"+{key}={value}" for key, value in attributes.items())


def apply_attributes(current: Mapping[str, str] | None, changes: str) -> dict[str, str]:
    """Change a topic's attributes.

    Parameters
    ----------
    current
        The topic's attributes; None for a topic that is being created.
    changes
        What to change, as the string described above.

    Raises
    ------
    InvalidParameterError
        The string is malformed, or what it asks for cannot be.  Nothing is changed then.

    Examples
    --------
    >>> apply_attributes(None, "+cleanup.policy=COMPACTION,+message.type=NORMAL")
    {'cleanup.policy': 'COMPACTION', 'message.type': 'NORMAL'}
    >>> apply_attributes({"message.type": "NORMAL"}, "-message.type")
    {}
    """
    changed = dict(current or {})
    seen: set[str] = set()
    for change in filter(None, (part.strip() for part in changes.split(","))):
        key, value = _parse(change)
        if key in seen:
            raise _refusal(f"key duplication: {key}")
        seen.add(key)
        _check(key, value, current)
        if value is None:
            del changed[key]
        else:
            changed[key] = value
    return changed


def _refusal(message: str, hint: str | None = None) -> InvalidParameterError:
    return InvalidParameterError(message, hint=hint, number=_NUMBER)


def _parse(change: str) -> tuple[str, str | None]:
    """Key and new value of a change; the value is None when the key shall go."""
    key, equals, value = (part.strip() for part in change[1:].partition("="))
    if change[0] == "+" and equals and key and value:
        return key, value
    if change[0] == "-" and key and not equals:
        return key, None
    hint = "write +key=value to add or alter, -key to delete"
    kind = "add/alter" if "=" in change else "delete"
    raise _refusal(f"{kind} attribute format is wrong: {change}", hint)


def _check(key: str, value: str | None, current: Mapping[str, str] | None) -> None:
    attribute = _ATTRIBUTES.get(key)
    if attribute is None:
        raise _refusal(f"unsupported key: {key}", f"there are {', '.join(_ATTRIBUTES)}")
    if value is None and (current is None or key not in current):
        raise _refusal(f"attempt to delete a nonexistent key: {key}")
    if current is not None and not attribute.changeable and value != current.get(key):
        raise _refusal(
            f"attempt to update an unchangeable attribute. key: {key}",
            "delete the topic and create it anew",
        )
    if value is not None and not attribute.accepts(value):
        raise _refusal(f"attribute {key} cannot be {value}", f"possible: {attribute.values}")
