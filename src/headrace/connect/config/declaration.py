"""Declarations: all keys of a plugin, from which values, validation and docs are made."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.connect.config.config import Config
from headrace.connect.config.keys import ConfigKey, ConfigProblem
from headrace.connect.config.secret import MASK
from headrace.errors import ConnectorConfigError

__all__ = ["ConfigDeclaration", "declare"]

# A key this near to a declared one is a typing mistake, not somebody's own key.
_NEAR = 0.85


class ConfigDeclaration:
    """The keys of a plugin, in the order in which forms and docs show them.

    Examples
    --------
    >>> from headrace.connect.config import key
    >>> declaration = declare(key("file", str, "The file to read.", required=True))
    >>> declaration.problems({"flie": "a.txt"})[0].message
    'The key file is missing: The file to read.'
    """

    def __init__(self, keys: Iterable[ConfigKey]) -> None:
        self.by_name: dict[str, ConfigKey] = {}
        for one in keys:
            if one.name in self.by_name:
                message = f"The config key {one.name} is declared twice."
                raise TypeError(message)
            self.by_name[one.name] = one

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def __getitem__(self, name: str) -> ConfigKey:
        return self.by_name[name]

    def __or__(self, other: ConfigDeclaration) -> ConfigDeclaration:
        """Join two declarations; a key of the right side wins over its namesake."""
        return ConfigDeclaration((self.by_name | other.by_name).values())

    def without(self, *names: str) -> ConfigDeclaration:
        """Give a declaration that lacks these keys."""
        return ConfigDeclaration(one for one in self if one.name not in names)

    def parse(self, texts: Mapping[str, str], written: Mapping[str, str] | None = None) -> Config:
        """Read a config.

        Parameters
        ----------
        texts
            The config, with values from outside in their places.
        written
            The config as it was written: what messages quote, so that none of them shows a value
            from outside.

        Raises
        ------
        ConnectorConfigError
            Naming everything that is wrong with it.
        """
        values, problems = self.read(texts, written)
        if problems:
            raise ConnectorConfigError.of((one.key, one.message) for one in problems)
        return Config(values, texts)

    def problems(self, texts: Mapping[str, str]) -> list[ConfigProblem]:
        """Name everything that is wrong with a config, misspelt keys included."""
        return self.read(texts)[1] + self.misspelt(texts)

    def read(
        self, texts: Mapping[str, str], written: Mapping[str, str] | None = None
    ) -> tuple[dict[str, Any], list[ConfigProblem]]:
        """Read what can be read, and name what cannot; a wrong value counts as ``None``."""
        values: dict[str, Any] = {}
        problems: list[ConfigProblem] = []
        for one in self:
            try:
                values[one.name] = self._value(one, texts, written or texts)
            except ValueError as error:
                values[one.name] = None
                problems.append(ConfigProblem(one.name, str(error)))
        return values, problems

    def _value(self, one: ConfigKey, texts: Mapping[str, str], written: Mapping[str, str]) -> Any:
        given = [name for name in (one.name, *one.aliases) if name in texts]
        if not given:
            if one.required:
                message = f"The key {one.name} is missing: {one.doc}"
                raise ValueError(message)
            return one.default
        if len({texts[name] for name in given}) > 1:
            message = f"The keys {' and '.join(given)} mean the same and disagree: leave one out."
            raise ValueError(message)
        try:
            return one.parse(texts[given[0]])
        except ValueError as error:
            shown = MASK if one.secret else repr(written.get(given[0], MASK))
            message = f"The key {given[0]} is {shown}: {error}. {one.doc}"
            raise ValueError(message) from None

    def unknown(self, texts: Mapping[str, str]) -> list[str]:
        """Give the names that nobody declared."""
        known = {name for one in self for name in (one.name, *one.aliases)}
        return [name for name in texts if name not in known]

    def misspelt(self, texts: Mapping[str, str]) -> list[ConfigProblem]:
        """Name the keys that nobody declared and that look like a declared one."""
        known = [name for one in self for name in (one.name, *one.aliases)]
        free = [name for name in known if name not in texts]
        found = []
        for name in self.unknown(texts):
            if near := _nearest(name, free):
                message = f"There is no key {name}: did you mean {near}?"
                found.append(ConfigProblem(name, message))
        return found


def _nearest(name: str, known: list[str]) -> str | None:
    # Letters that changed places make short words look very different.
    swapped = [one for one in known if sorted(one) == sorted(name.lower())]
    near = swapped or difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
    return near[0] if near else None


def declare(*keys: ConfigKey) -> ConfigDeclaration:
    """Declare the keys of a plugin.

    >>> from headrace.connect.config import key
    >>> declare(key("rows", int, "Most rows of a poll.", default=100)).parse({})["rows"]
    100
    """
    return ConfigDeclaration(keys)
