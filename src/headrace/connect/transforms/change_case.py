"""ChangeCase: field names in another case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from headrace.connect.config import Config, declare, key, one_of
from headrace.connect.transforms._structure import SchemaCache
from headrace.connect.transforms.base import OfKey, OfValue, SidedTransform
from headrace.connect.transforms.pattern_rename import renamed

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord
    from headrace.connect.schema import Schema


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


class ChangeCase(SidedTransform):
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
        self._schemas = SchemaCache(lambda schema: renamed(schema, self._name))

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Rename the fields; what has none stays as it is."""
        del record
        if not isinstance(value, dict):
            return schema, value
        if schema is None:
            return None, {self._name(name): one for name, one in value.items()}
        changed, names = self._schemas[schema]
        return changed, {new: value.get(old) for old, new in names.items()} if names else value

    def _name(self, name: Any) -> Any:
        return self._join(self._split(name)) if isinstance(name, str) and name else name


class ChangeCaseKey(OfKey, ChangeCase):
    """ChangeCase on the key."""


class ChangeCaseValue(OfValue, ChangeCase):
    """ChangeCase on the value."""
