"""Config keys: what a connector can be told, each declared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from headrace.connect.config.checks import Check, at_least
from headrace.connect.config.kinds import Kind, Size, kind_of
from headrace.connect.config.secret import Secret

__all__ = ["ConfigKey", "ConfigProblem", "Importance", "Width", "key"]

Importance = Literal["high", "medium", "low"]
"""How likely somebody sets a key."""

Width = Literal["none", "short", "medium", "long"]
"""How wide a form's field for the value is best."""

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """What is wrong with the value of one key.

    >>> ConfigProblem("port", "another connector listens there").key
    'port'
    """

    key: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key of a config; made by :func:`key`."""

    name: str
    declared: Any
    doc: str
    default: Any = None
    required: bool = False
    valid: Check | None = None
    importance: Importance = "medium"
    group: str | None = None
    width: Width = "medium"
    #: The name that a form shows.
    display: str = ""
    #: Keys whose recommended values or visibility hang on this one.
    dependents: tuple[str, ...] = ()
    #: Gives good values, from the values of the other keys.
    recommend: Callable[[Values], Sequence[Any]] | None = None
    #: Whether the key matters, from the values of the other keys.
    visible: Callable[[Values], bool] | None = None
    #: Other names of the same key.
    aliases: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """How its values are read and written."""
        return kind_of(self.declared)

    @property
    def secret(self) -> bool:
        """Whether its value is never shown."""
        return self.declared is Secret

    def parse(self, text: str) -> Any:
        """Read a value and check it.

        Raises
        ------
        ValueError
            With what is wrong.
        """
        value = self.kind.parse(text)
        if self.valid is not None and not self.valid.allows(value):
            message = f"it must be {self.valid.words}"
            raise ValueError(message)
        return value

    def write(self, value: Any) -> str | None:
        """Write a value as text, as REST and docs show it."""
        return None if value is None else self.kind.write(value)


def key(
    name: str,
    kind: Any,
    doc: str,
    *,
    default: Any = None,
    required: bool = False,
    valid: Check | None = None,
    importance: Importance | None = None,
    **more: Any,
) -> ConfigKey:
    """Declare a config key.

    Parameters
    ----------
    name
        What it is called, in words with dots: ``batch.max.rows``.
    kind
        ``str``, ``int``, ``float``, ``bool``, ``timedelta``, ``Size`` (bytes), ``Path``,
        ``Secret``, ``re.Pattern``, ``list``, ``list[int]`` ..., ``PluginName("converters")``.
    doc
        One or more sentences: what it does.
    default
        Its value where none is given; ``None`` says that there is none.
    required
        Whether it must be given.
    valid
        What values may stand, such as ``between(1, 100)``.
    importance
        ``high``, ``medium`` or ``low``; ``high`` for required keys unless said otherwise.
    more
        ``group``, ``width``, ``display``, ``dependents``, ``recommend``, ``visible`` and
        ``aliases`` of :class:`ConfigKey`.

    Examples
    --------
    >>> from headrace.connect.config import between
    >>> port = key("port", int, "Where it listens.", default=80, valid=between(1, 65535))
    >>> port.parse("8080")
    8080
    >>> port.parse("99999")
    Traceback (most recent call last):
    ValueError: it must be from 1 to 65535
    """
    if required and default is not None:
        message = f"The key {name} is required and has a default: leave one of both out."
        raise TypeError(message)
    kind_of(kind)
    # Times and sizes below nothing make sense only where somebody says so.
    if valid is None and kind in {timedelta, Size}:
        valid = at_least(timedelta(0) if kind is timedelta else 0)
    return ConfigKey(
        name=name,
        declared=kind,
        doc=doc,
        default=default,
        required=required,
        valid=valid,
        importance=importance or ("high" if required else "medium"),
        display=more.pop("display", "") or name.replace(".", " ").capitalize(),
        **more,
    )
