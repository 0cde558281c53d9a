"""PatternRename and ChangeCase: field names by a regular expression, or in another case."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from headrace.connect.config import Config, declare, each, key, one_of
from headrace.connect.predicates.patterns import expanded, java_pattern
from headrace.connect.schema import Field, Schema, Type
from headrace.connect.transforms._structure import SchemaCache
from headrace.connect.transforms.base import SidedTransform, both_sides
from headrace.errors import TransformError

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


_FLAGS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "CASE_INSENSITIVE": re.IGNORECASE,
        "COMMENTS": re.VERBOSE,
        "DOTALL": re.DOTALL,
        "MULTILINE": re.MULTILINE,
    }
)


class FieldRenaming(SidedTransform):
    """Renames fields, each as :meth:`name` says; what has no fields stays as it is."""

    def __init__(self) -> None:
        self._schemas = SchemaCache(self._renamed)

    @abstractmethod
    def name(self, old: Any) -> Any:
        """Return the new name of a field; a key of a map that is not text may stay what it is."""

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Rename the fields."""
        del record
        if not isinstance(value, dict):
            return schema, value
        if schema is None:
            return None, {self.name(old): one for old, one in value.items()}
        changed, names = self._schemas[schema]
        return changed, {new: value.get(old) for old, new in names.items()} if names else value

    def _renamed(self, schema: Schema) -> tuple[Schema, dict[str, str]]:
        if schema.type is not Type.STRUCT:
            return schema, {}
        names = {one.name: self.name(one.name) for one in schema.fields}
        fields = (Field(names[one.name], one.schema) for one in schema.fields)
        return schema.with_fields(*fields), names


class PatternRename(FieldRenaming):
    r"""Replaces each part of a field's name that matches a regular expression.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = PatternRenameValue()
    >>> texts = {"field.pattern": r"\.", "field.replacement": "_"}
    >>> transform.configure(PatternRename.config.parse(texts))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"a.b": 1})
    >>> transform.apply(record).value
    {'a_b': 1}
    """

    config = declare(
        key("field.pattern", str, "The regular expression, of Java's kind.", required=True),
        key(
            "field.pattern.flags",
            list[str],
            "How it is read.",
            default=["CASE_INSENSITIVE"],
            valid=each(one_of(*_FLAGS)),
        ),
        key(
            "field.replacement",
            str,
            "What stands there instead; $1 and ${name} stand for groups.",
            required=True,
        ),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        flags = 0
        for name in config["field.pattern.flags"]:
            flags |= _FLAGS[name]
        self._pattern = java_pattern(config["field.pattern"], flags)
        self._replacement: str = config["field.replacement"]

    def name(self, old: Any) -> Any:
        """Replace what matches."""
        if not isinstance(old, str):
            return old
        try:
            return self._pattern.sub(lambda found: expanded(self._replacement, found), old)
        except ValueError as error:
            raise TransformError(
                f"PatternRename cannot rename the field {old}: {error}.",
                hint="Correct the transform's field.replacement.",
            ) from None


PatternRenameKey, PatternRenameValue = both_sides(PatternRename)

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
