"""The typed values of a config, as plugins see them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import ConnectorConfigError

__all__ = ["Config"]


class Config(Mapping[str, Any]):
    """A config whose declared keys have typed values.

    Made by :meth:`ConfigDeclaration.parse`.  Keys that nobody declared are not among the values:
    :attr:`texts` has everything as it was written.

    Examples
    --------
    >>> from headrace.connect.config import Secret, declare, key
    >>> declaration = declare(
    ...     key("port", int, "Where it listens.", default=80), key("password", Secret, "Its word.")
    ... )
    >>> config = declaration.parse({"password": "swordfish", "extra": "1"})
    >>> config
    Config(port=80, password=Secret(********))
    >>> config.texts["extra"]
    '1'
    """

    def __init__(self, values: Mapping[str, Any], texts: Mapping[str, str]) -> None:
        self._values = dict(values)
        self.texts: Mapping[str, str] = dict(texts)

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._values, n=1)
            hint = f"Did you mean {near[0]}?" if near else "Declare it with key(...)."
            message = f"The config key {name!r} is not declared."
            raise ConnectorConfigError(message, hint=hint) from None

    def get(self, name: str, default: Any = None) -> Any:
        """Give the value of a declared key, or the default where it is missing or ``None``."""
        value = self._values.get(name)
        return default if value is None else value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def section(self, prefix: str) -> dict[str, str]:
        """Give the texts of all keys that begin with a prefix, without the prefix.

        >>> Config({}, {"table.a": "1", "tables": "2"}).section("table.")
        {'a': '1'}
        """
        return {
            name.removeprefix(prefix): text
            for name, text in self.texts.items()
            if name.startswith(prefix)
        }
