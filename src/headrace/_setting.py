"""What a setting is: a dataclass field with a unit, a sentence and a check.

Each setting is written once, as a field made by :func:`setting`; validation, environment
variables, ``--help`` and the page in ``docs/`` all read that field.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Any

from headrace.errors import SettingsError
from headrace.spelling import did_you_mean, typo_of

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import BaseModel, ValidationError


PREFIX = "HEADRACE_"

_UNITS = {
    "ms": "milliseconds",
    "millisecond": "milliseconds",
    "milliseconds": "milliseconds",
    "s": "seconds",
    "second": "seconds",
    "seconds": "seconds",
    "min": "minutes",
    "minute": "minutes",
    "minutes": "minutes",
    "h": "hours",
    "hour": "hours",
    "hours": "hours",
}


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


def parse_duration(text: str) -> timedelta:
    """Read a duration such as ``500 ms``, ``2s`` or ``5 minutes``.

    Raises
    ------
    ValueError
        When the text is no number with a unit of time.

    Examples
    --------
    >>> parse_duration("500 ms")
    datetime.timedelta(microseconds=500000)
    >>> parse_duration("1.5 minutes").total_seconds()
    90.0
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text.lower())
    unit = _UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        message = "a duration is a number and a unit: 500 ms, 2 s, 5 min or 1 h"
        raise ValueError(message)
    return timedelta(**{unit: float(match[1])})


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
        return f"{value.total_seconds():g} s"
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
    from pydantic import ValidationError

    fields = dataclasses.fields(settings)
    given = {field.name: getattr(settings, field.name) for field in fields}
    try:
        checked = _model(type(settings)).model_validate(given)
    except ValidationError as error:
        raise _settings_error(settings, error) from None
    for field in fields:
        object.__setattr__(settings, field.name, getattr(checked, field.name))


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
    if meant := typo_of(variable, names):
        message = f"The environment variable {variable} is no setting."
        raise SettingsError(message, hint=f"did you mean '{meant}'?")


def _pairs(variable: str, text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        message = f"The environment variable {variable} holds {wrong[0]!r}, which has no '='."
        raise SettingsError(message, hint="Write key=value,key=value.")
    return {key.strip(): value.strip() for key, _, value in pairs}


@cache
def _model(kind: type[DataclassInstance]) -> type[BaseModel]:
    from pydantic import BeforeValidator, ConfigDict, Field, create_model

    hints = typing.get_type_hints(kind)
    definitions: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if hint is timedelta:
            hint = typing.Annotated[timedelta, BeforeValidator(_as_duration)]
        elif typing.get_origin(hint) is tuple:
            hint = typing.Annotated[hint, BeforeValidator(_as_list)]
        rules = {"ge": field.metadata["minimum"], "pattern": field.metadata["pattern"]}
        given = {name: rule for name, rule in rules.items() if rule is not None}
        definitions[field.name] = (hint, Field(**given))
    config = ConfigDict(arbitrary_types_allowed=True, str_strip_whitespace=True)
    return create_model(kind.__name__, __config__=config, **definitions)


def _as_duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    message = "give a timedelta, or text such as '500 ms'"
    # pydantic collects ValueErrors only.
    raise ValueError(message)


def _as_list(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _settings_error(settings: DataclassInstance, error: ValidationError) -> SettingsError:
    fields = {field.name: field for field in dataclasses.fields(settings)}
    reasons: dict[str, list[str]] = {}
    for problem in error.errors():
        field = fields[str(problem["loc"][0])]
        why = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "string_pattern_mismatch":
            why = f"it does not look like {field.metadata['unit']}"
        reasons.setdefault(field.name, []).append(f"{why[0].lower()}{why[1:]}")
    lines = []
    hints = []
    for name, whys in reasons.items():
        field, value = fields[name], getattr(settings, name)
        shown = str(value) if isinstance(value, timedelta) else repr(value)
        if field.metadata["secret"]:
            shown = "wrong"
        lines.append(f"The setting {name} is {shown}: {'; or '.join(whys)}.")
        hints.append(f"{name}: {field.metadata['doc']} Default: {describe_default(field)}.")
    return SettingsError("\n".join(lines), hint="\n    ".join(hints))
