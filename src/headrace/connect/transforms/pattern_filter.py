"""PatternFilter: drops records by the text of their fields."""

from __future__ import annotations

from headrace.connect.config import Config, declare, key, not_empty
from headrace.connect.predicates.patterns import java_pattern
from headrace.connect.transforms.base import Record, Transform, both_sides


class PatternFilter(Transform):
    """Drops a record if the whole text of one of these fields matches a regular expression.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = PatternFilterValue()
    >>> texts = {"pattern": "test.*", "fields": "name"}
    >>> transform.configure(PatternFilter.config.parse(texts))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", value={"name": "test 1"})
    >>> transform.apply(record) is None
    True
    """

    #: ``key`` or ``value``.
    side: str

    config = declare(
        key("pattern", str, "The regular expression, of Java's kind.", required=True),
        key("fields", list[str], "The fields to look at.", required=True, valid=not_empty()),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._pattern = java_pattern(config["pattern"])
        self._fields: list[str] = config["fields"]

    def apply(self, record: Record) -> Record | None:
        """Drop the record, or return it."""
        value = record.key if self.side == "key" else record.value
        if not isinstance(value, dict):
            return record
        texts = (value.get(name) for name in self._fields)
        matches = any(isinstance(one, str) and self._pattern.fullmatch(one) for one in texts)
        return None if matches else record


PatternFilterKey, PatternFilterValue = both_sides(PatternFilter)
