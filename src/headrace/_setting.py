"""What a setting is: a dataclass field with a unit, a sentence and a check.

Each setting is written once, as a field made by :func:`setting`; validation, environment
variables, ``--help`` and the page in ``docs/`` all read that field.
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import math
import os
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.durations import (
    as_duration,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from headrace.errors import SettingsError
from headrace.spelling import did_you_mean

if typing.TYPE_CHECKING:
    from _typeshed import DataclassInstance


PREFIX = "HEADRACE_"
"""How the environment variables of settings begin."""

SHORTEST = timedelta(milliseconds=1)
"""The smallest value of a duration that must not be zero."""

#: How the variables of the broker and of Connect's workers begin, which no job reads.
_PREFIXES = ("HEADRACE_BROKER_", "HEADRACE_CONNECT_")


def setting(  # noqa: PLR0913  (keywords that say all about a setting)
    default: object = dataclasses.MISSING,
    *,
    doc: str,
    unit: str = "",
    make: Callable[[], object] | None = None,
    shown: str | None = None,
    minimum: float | timedelta | None = None,
    maximum: float | None = None,
    pattern: str | None = None,
    secret: bool = False,
    nothing: str | None = None,
    option: str | None = None,
    variable: str | None = None,
) -> Any:
    """Make a dataclass field that is a setting.

    Parameters
    ----------
    default, make
        The default, or what makes it.
    doc
        One sentence that says what the setting does.
    unit
        What the value counts, such as ``"records"``.  As text, ``"bytes"`` may be ``64MiB``, and
        ``"ms"`` and ``"seconds"`` a duration or a number.
    shown
        The default as the documentation shows it, where it depends on the machine.
    minimum, maximum, pattern
        What a value must be at least and at most, and what it must look like.  A number or a
        duration must not be negative unless the minimum says otherwise.
    secret
        Whether the value is never printed.
    nothing
        The word that stands for None in a text, such as ``"forever"``.
    option, variable
        Names of the option and of the environment variable that do not follow from the field's.
    """
    metadata = {
        "doc": doc,
        "unit": unit,
        "shown": shown,
        "minimum": minimum,
        "maximum": maximum,
        "pattern": pattern,
        "secret": secret,
        "nothing": nothing,
        "option": option,
        "variable": variable,
    }
    if make is not None:
        return dataclasses.field(default_factory=make, metadata=metadata, repr=not secret)
    return dataclasses.field(default=default, metadata=metadata, repr=not secret)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSettings:
    """What all dataclasses of settings have: checks, and ways to write the settings as text.

    Raises
    ------
    SettingsError
        When a value cannot work; the message names the setting, its value and why.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    ... class Cup(DeclaredSettings):
    ...     size: int = setting(1, doc="What it holds.", unit="bytes")
    >>> Cup(size="2 KiB").size, Cup.parse(["size=7"]).size
    (2048, 7)
    >>> Cup.from_env({"HEADRACE_SIZE": "3"}).size, Cup.from_env({"HEADRACE_SIZE": "3"}, size=4).size
    (3, 4)
    """

    #: How its environment variables begin; empty if it has none.
    VARIABLES: typing.ClassVar[str] = PREFIX
    #: The first setting of each group in which help shows them, and the group's name.
    PANELS: typing.ClassVar[Mapping[str, str]] = {}
    #: What an error calls a setting; ``{}`` stands for its name.
    TOLD_AS: typing.ClassVar[str] = "setting {}"

    def __post_init__(self) -> None:
        validate(self)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **given: Any) -> typing.Self:
        """Take settings from environment variables; those in ``given`` win.

        Parameters
        ----------
        environ
            The variables; the process's own environment by default.
        given
            Settings by name.  ``None`` means not given.

        Raises
        ------
        SettingsError
            When a value cannot work, or a variable looks like a misspelt setting.
        """
        values = environment_values(cls, os.environ if environ is None else environ)
        values |= {name: value for name, value in given.items() if value is not None}
        return cls(**values)

    @classmethod
    def name_of(cls, field: str) -> str:
        """Return the name by which users give a setting."""
        return field

    @classmethod
    def parse(cls, texts: Iterable[str]) -> typing.Self:
        """Read settings given as ``name=value``; errors are those of :meth:`named`."""
        pairs = (text.partition("=") for text in texts)
        return cls.named({name.strip(): value.strip() for name, _, value in pairs})

    @classmethod
    def named(cls, given: Mapping[str, Any]) -> typing.Self:
        """Take settings by the names under which users give them.

        Raises
        ------
        SettingsError
            When one has no such name or no such value.
        """
        fields = {cls.name_of(field.name): field.name for field in settings_of(cls)}
        for name in given:
            if name not in fields:
                hint = did_you_mean(name, fields, f"There are {', '.join(fields)}.")
                raise SettingsError(f"There is no {cls.TOLD_AS.format(name)}.", hint=hint)
        return cls(**{fields[name]: value for name, value in given.items()})


def settings_of(kind: type[DataclassInstance]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass that are settings."""
    return [field for field in dataclasses.fields(kind) if "doc" in field.metadata]


def describe_default(field: dataclasses.Field[Any]) -> str:
    """Write a setting's default as people write it."""
    if (shown := field.metadata["shown"]) is not None:
        return str(shown)
    value = field.default
    if value is None or value == ():
        return field.metadata["nothing"] or "none"
    if field.metadata["unit"] == "bytes" and isinstance(value, int):
        return format_size(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def describe_kind(kind: type[DataclassInstance], field: dataclasses.Field[Any]) -> str:
    """Write what a setting's values look like: its unit, its choices, or its type."""
    if unit := field.metadata["unit"]:
        return str(unit)
    hint = _without_none(_hints(kind)[field.name])
    match typing.get_origin(hint):
        case typing.Literal:
            return " or ".join(f"`{choice}`" for choice in typing.get_args(hint))
        case builtins.tuple:
            return f"{_KINDS[typing.get_args(hint)[0]]},..."
    return _KINDS[hint]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting as an option of a command line."""

    name: str
    #: What stands on the command line, such as ``--retention-size``.
    flag: str
    metavar: str
    help: str
    #: ``bool``: on or off; ``list``: may be given again; otherwise ``str``.
    kind: type[bool | list[str] | str]
    #: The group in which help shows it.
    panel: str


def options_of(kind: type[DeclaredSettings]) -> list[Option]:
    """Return the options of the settings of a dataclass; each value is text, or texts."""
    options, panel = [], "Settings"
    for field in settings_of(kind):
        panel = kind.PANELS.get(field.name, panel)
        options.append(_option(kind, field, panel))
    return options


def _option(kind: type[DataclassInstance], field: dataclasses.Field[Any], panel: str) -> Option:
    hint = _without_none(_hints(kind)[field.name])
    several = typing.get_origin(hint) in _SEVERAL or _is_declared(hint)
    again = " May be given again." if several else ""
    words = describe_kind(kind, field)
    choices = words.replace("`", "").replace(" or ", "|")
    return Option(
        name=field.name,
        flag=field.metadata["option"] or f"--{field.name.replace('_', '-')}",
        metavar=choices if "`" in words else words.upper(),
        help=f"{field.metadata['doc']}{again} Default: {describe_default(field)}.",
        kind=list[str] if several else bool if hint is bool else str,
        panel=panel,
    )


def validate(settings: DeclaredSettings) -> None:
    """Check every field, and put what was given as text into the field's own type.

    Raises
    ------
    SettingsError
        Naming every setting that is wrong, its value and why.
    """
    kind: type[DataclassInstance] = type(settings)
    hints = _hints(kind)
    lines, hints_of_wrong = [], []
    for field in settings_of(kind):
        name, value = field.name, getattr(settings, field.name)
        try:
            object.__setattr__(settings, name, _checked(field, hints[name], value))
        except SettingsError as error:
            # Of settings in it, which name themselves.
            lines.append(error.message)
            hints_of_wrong.append(error.hint or "")
        except (TypeError, ValueError) as error:
            shown = format_duration(value) if isinstance(value, timedelta) else repr(value)
            if field.metadata["secret"]:
                shown = "wrong"
            called = settings.name_of(name)
            lines.append(f"The {settings.TOLD_AS.format(called)} is {shown}: {error}.")
            default = describe_default(field)
            hints_of_wrong.append(f"{called}: {field.metadata['doc']} Default: {default}.")
    if lines:
        raise SettingsError("\n".join(lines), hint="\n    ".join(hints_of_wrong))


def variable_of(kind: type[DeclaredSettings], field: dataclasses.Field[Any]) -> str:
    """Return the name of the environment variable for a setting."""
    return field.metadata["variable"] or f"{kind.VARIABLES}{field.name.upper()}"


def environment_values(kind: type[DeclaredSettings], environ: Mapping[str, str]) -> dict[str, Any]:
    """Collect the settings that environment variables give, by setting name.

    Raises
    ------
    SettingsError
        When a variable looks like the misspelt name of a setting.
    """
    if not kind.VARIABLES:
        return {}
    names = {variable_of(kind, field): field.name for field in settings_of(kind)}
    others = tuple(prefix for prefix in _PREFIXES if prefix != kind.VARIABLES)
    for variable in environ.keys() - names.keys():
        if variable.startswith(kind.VARIABLES) and not variable.startswith(others):
            _refuse_typo(variable, names, kind.VARIABLES)
    return {name: environ[variable] for variable, name in names.items() if variable in environ}


def _refuse_typo(variable: str, names: Iterable[str], prefix: str) -> None:
    # What all of them begin with would make any two look alike.
    own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    if meant := did_you_mean(variable.removeprefix(prefix), own, surely=True):
        hint = meant.replace("'", f"'{prefix}", 1)
        raise SettingsError(f"The environment variable {variable} is no setting.", hint=hint)


@cache
def _hints(kind: type[object]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _without_none(hint: Any) -> Any:
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    return kinds[0] if type(None) in typing.get_args(hint) else hint


def _checked(field: dataclasses.Field[Any], hint: Any, value: object) -> Any:
    about = field.metadata
    found = _converted(hint, _plain(hint, about["unit"], about["nothing"], value))
    if found is None:
        return None
    least = about["minimum"]
    if least is None and hint is not Any and isinstance(found, int | float | timedelta):
        least = type(found)()
    if least is not None and found < least:
        raise ValueError(f"input should be greater than or equal to {_written(least)}")
    if about["maximum"] is not None and found > about["maximum"]:
        raise ValueError(f"input should be less than or equal to {_written(about['maximum'])}")
    if about["pattern"] is not None and re.fullmatch(about["pattern"], found) is None:
        raise ValueError(f"it does not look like {about['unit']}")
    return found


def _plain(hint: Any, unit: str, nothing: str | None, value: object) -> object:
    """Return a value without the words and units that its setting alone knows."""
    if isinstance(value, str):
        if nothing is not None and value.strip().lower() == nothing:
            return None
        if unit == "bytes":
            return parse_size(value)
        if unit in _STEPS:
            value = parse_duration(f"{value} {unit}" if _NUMBER.fullmatch(value) else value)
    if unit in _STEPS and hint is int and isinstance(value, timedelta):
        count, rest = divmod(value, _STEPS[unit])
        if rest:
            raise ValueError(f"give whole {unit}")
        return count
    return value


def _written(bound: float | timedelta) -> str:
    return format_duration(bound) if isinstance(bound, timedelta) else f"{bound:,}"


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
            return tuple(_converted(kinds[0], one) for one in _parts(value) if one)
        case collections.abc.Mapping:
            return {_text(name): _text(one) for name, one in _pairs(value)}
        case None if _is_declared(hint):
            return _declared(hint, value)
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


def _parts(value: object) -> Iterator[object]:
    """Yield the values of a list; a text in it may hold several, with commas."""
    if not isinstance(value, str | list | tuple):
        raise TypeError("give a list, or text with commas")
    for one in [value] if isinstance(value, str) else value:
        yield from map(str.strip, one.split(",")) if isinstance(one, str) else (one,)


def _pairs(value: object) -> Iterable[tuple[object, object]]:
    """Return names and values of a dict, of ``key=value`` texts, or of such a text with commas."""
    if isinstance(value, Mapping):
        return value.items()
    texts = _texts(value)
    if wrong := [text for text in texts if "=" not in text]:
        raise ValueError(f"{wrong[0]!r} has no '='; write key=value,key=value")
    return [(name, one) for name, _, one in (text.partition("=") for text in texts)]


def _is_declared(hint: Any) -> typing.TypeGuard[type[DeclaredSettings]]:
    return isinstance(hint, type) and issubclass(hint, DeclaredSettings)


def _declared(kind: type[DeclaredSettings], value: object) -> DeclaredSettings:
    """Return settings that belong together."""
    return value if isinstance(value, kind) else kind.parse(_texts(value))


def _texts(value: object) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise TypeError("give texts such as name=value")
    return [_text(part) for part in parts if part]


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


def _number(value: object) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError("give a number")


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


_NUMBER = re.compile(r"\s*[+-]?\d+(\.\d*)?\s*")
#: Units of time, which a number may leave out.
_STEPS = {"ms": timedelta(milliseconds=1), "seconds": timedelta(seconds=1)}
#: Types of which an option may be given again.
_SEVERAL = (tuple, collections.abc.Mapping)

_CONVERSIONS: Mapping[Any, Callable[[object], Any]] = MappingProxyType(
    {
        Any: lambda value: value,
        str: _text,
        int: _whole,
        float: _number,
        bool: _truth,
        Path: _path,
        datetime: _moment,
        timedelta: as_duration,
    }
)

#: What values look like if their setting has no unit.
_KINDS: Mapping[Any, str] = MappingProxyType(
    {
        str: "text",
        int: "number",
        float: "number",
        bool: "true or false",
        Path: "path",
        datetime: "time",
        timedelta: "duration",
    }
)
