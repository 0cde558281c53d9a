"""What a setting is: a dataclass field with a unit, a sentence and a check.

Each setting is written once, as a field made by :func:`setting`; validation, environment
variables, ``--help`` and the page in ``docs/`` all read that field.
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import os
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.durations import format_duration, parse_duration
from headrace.errors import SettingsError
from headrace.spelling import did_you_mean

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance


PREFIX = "HEADRACE_"


def setting(
    default: object = dataclasses.MISSING,
    *,
    doc: str,
    unit: str = "",
    make: Callable[[], object] | None = None,
    shown: str | None = None,
    minimum: float | timedelta | None = None,
    pattern: str | None = None,
    secret: bool = False,
) -> Any:
    """Make a dataclass field that is a setting.

    Parameters
    ----------
    default, make
        The default, or what makes it.
    doc
        One sentence that says what the setting does.
    unit
        What the value counts, such as ``"records"``.
    shown
        The default as the documentation shows it, where it depends on the machine.
    minimum, pattern
        What a value must be at least, and what it must look like.
    secret
        Whether the value is never printed.
    """
    metadata = {
        "doc": doc,
        "unit": unit,
        "shown": shown,
        "minimum": minimum,
        "pattern": pattern,
        "secret": secret,
    }
    if make is not None:
        return dataclasses.field(default_factory=make, metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


def named_values(
    texts: Iterable[str], names: Collection[str], complaint: str
) -> Iterator[tuple[str, str]]:
    """Split ``name=value`` texts.

    Parameters
    ----------
    texts
        What was given.
    names
        The names that there are.
    complaint
        What to say of another one, which takes the place of ``{}``.

    Raises
    ------
    SettingsError
        When there is no such name.

    Examples
    --------
    >>> list(named_values(["size=7"], ["size", "age"], "there is no limit {}"))
    [('size', '7')]
    """
    for text in texts:
        name, _, value = text.partition("=")
        if name not in names:
            hint = did_you_mean(name, names, f"there are {', '.join(names)}")
            raise SettingsError(complaint.format(repr(name)), hint=hint)
        yield name, value


def describe_default(field: dataclasses.Field[Any]) -> str:
    """Write a setting's default as people write it."""
    if (shown := field.metadata["shown"]) is not None:
        return str(shown)
    value = field.default
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def validate(settings: DataclassInstance) -> None:
    """Check every field, and put what was given as text into the field's own type.

    Caller: ``__post_init__`` of a frozen dataclass of settings.

    Raises
    ------
    SettingsError
        Naming every setting that is wrong, its value and why.
    """
    hints = _hints(type(settings))
    lines, hints_of_wrong = [], []
    for field in dataclasses.fields(settings):
        name, value = field.name, getattr(settings, field.name)
        try:
            object.__setattr__(settings, name, _checked(field, hints[name], value))
        except (TypeError, ValueError) as error:
            shown = format_duration(value) if isinstance(value, timedelta) else repr(value)
            if field.metadata["secret"]:
                shown = "wrong"
            lines.append(f"The setting {name} is {shown}: {error}.")
            default = describe_default(field)
            hints_of_wrong.append(f"{name}: {field.metadata['doc']} Default: {default}.")
    if lines:
        raise SettingsError("\n".join(lines), hint="\n    ".join(hints_of_wrong))


def environment_values(
    kind: type[DataclassInstance], environ: Mapping[str, str]
) -> dict[str, str | dict[str, str]]:
    """Collect the settings that environment variables give, by setting name.

    Raises
    ------
    SettingsError
        When a variable looks like the misspelt name of a setting, or a map is not readable.
    """
    names = {PREFIX + field.name.upper(): field for field in dataclasses.fields(kind)}
    values: dict[str, str | dict[str, str]] = {}
    for variable, value in environ.items():
        if field := names.get(variable):
            is_map = str(field.type).startswith("Mapping")
            values[field.name] = _pairs(variable, value) if is_map else value
        elif variable.startswith(PREFIX):
            _refuse_typo(variable, list(names))
    return values


def _refuse_typo(variable: str, names: list[str]) -> None:
    if meant := did_you_mean(variable, names, surely=True):
        raise SettingsError(f"The environment variable {variable} is no setting.", hint=meant)


def _pairs(variable: str, text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        message = f"The environment variable {variable} holds {wrong[0]!r}, which has no '='."
        raise SettingsError(message, hint="Write key=value,key=value.")
    return {key.strip(): value.strip() for key, _, value in pairs}


@cache
def _hints(kind: type[DataclassInstance]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _checked(field: dataclasses.Field[Any], hint: Any, value: object) -> Any:
    found = _converted(hint, value)
    minimum, pattern = field.metadata["minimum"], field.metadata["pattern"]
    if found is None:
        return None
    if minimum is not None and found < minimum:
        least = format_duration(minimum) if isinstance(minimum, timedelta) else minimum
        raise ValueError(f"input should be greater than or equal to {least}")
    if pattern is not None and re.fullmatch(pattern, found) is None:
        raise ValueError(f"it does not look like {field.metadata['unit']}")
    return found


def _converted(hint: Any, value: Any) -> Any:
    """Return a value as one of a type; an error says what it should be."""
    if convert := _CONVERSIONS.get(hint):
        return convert(value)
    kinds = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Literal:
            if value in kinds:
                return value
            raise ValueError(f"input should be {' or '.join(map(repr, kinds))}")
        case builtins.tuple:
            texts = value.split(",") if isinstance(value, str) else value
            if not isinstance(texts, list | tuple):
                raise TypeError("give a list, or text with commas")
            parts = (one.strip() if isinstance(one, str) else one for one in texts)
            return tuple(_converted(kinds[0], one) for one in parts if one)
        case collections.abc.Mapping:
            if not isinstance(value, Mapping):
                raise TypeError("give a dict of texts")
            return {_text(name): _text(one) for name, one in value.items()}
    return _converted_to_one(kinds, value)


def _converted_to_one(kinds: tuple[Any, ...], value: object) -> Any:
    """Return a value as one of a union."""
    if value is None and type(None) in kinds:
        return None
    reasons = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return _converted(kind, value)
            except (TypeError, ValueError) as error:
                reasons.append(str(error))
    raise ValueError("; or ".join(reasons))


def _text(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    raise ValueError("give text")


def _whole(value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("give a whole number")


def _truth(value: object) -> bool:
    word = str(value).strip().lower()
    if word in {"true", "1", "yes", "on"}:
        return True
    if word in {"false", "0", "no", "off"}:
        return False
    raise ValueError("give true or false")


def _path(value: object) -> Path:
    if isinstance(value, str | os.PathLike):
        return Path(value)
    raise ValueError("give a path")


def _moment(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(_text(value))
    except ValueError:
        raise ValueError("a time such as 2026-05-01T12:00:00+00:00") from None


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    raise ValueError("give a timedelta, or text such as '500 ms'")


_CONVERSIONS: Mapping[Any, Callable[[object], Any]] = MappingProxyType(
    {str: _text, int: _whole, bool: _truth, Path: _path, datetime: _moment, timedelta: _duration}
)
