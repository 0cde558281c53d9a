"""ChangeCase: field names in another case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from headrace.connect.config import Config, declare, key, one_of
from headrace.connect.transforms.base import both_sides
from headrace.connect.transforms.pattern_rename import FieldRenaming

_BEFORE_UPPER = re.compile(r"(?<!^)(?=[A-Z])")

_SPLITTERS: Final[Mapping[str, Callable[[str], Sequence[str]]]] = MappingProxyType(
    {
        "LOWER_CAMEL": _BEFORE_UPPER.split,
        "UPPER_CAMEL": _BEFORE_UPPER.split,
        "LOWER_UNDERSCORE": lambda name: name.split("_"),
        "UPPER_UNDERSCORE": lambda name: name.split("_"),
        "LOWER_HYPHEN": lambda name: name.split("-"),
    }
)


def _camel(words: Sequence[str]) -> str:
    return "".join(word[:1].upper() + word[1:].lower() for word in words)


_JOINERS: Final[Mapping[str, Callable[[Sequence[str]], str]]] = MappingProxyType(
    {
        "LOWER_CAMEL": lambda words: words[0].lower() + _camel(words[1:]),
        "UPPER_CAMEL": _camel,
        "LOWER_UNDERSCORE": lambda words: "_".join(words).lower(),
        "UPPER_UNDERSCORE": lambda words: "_".join(words).upper(),
        "LOWER_HYPHEN": lambda words: "-".join(words).lower(),
    }
)


class ChangeCase(FieldRenaming):
    """Writes the names of fields in another case.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = ChangeCaseValue()
    >>> texts = {"from": "UPPER_UNDERSCORE", "to": "LOWER_CAMEL"}
    >>> transform.configure(ChangeCase.config.parse(texts))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"FIRST_NAME": "Ann"})
    >>> transform.apply(record).value
    {'firstName': 'Ann'}
    """

    config = declare(
        key("from", str, "The case that names are in.", required=True, valid=one_of(*_SPLITTERS)),
        key("to", str, "The case to write them in.", required=True, valid=one_of(*_JOINERS)),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._split = _SPLITTERS[config["from"]]
        self._join = _JOINERS[config["to"]]

    def name(self, old: Any) -> Any:
        """Write a name in the other case."""
        return self._join(self._split(old)) if isinstance(old, str) and old else old


ChangeCaseKey, ChangeCaseValue = both_sides(ChangeCase)
