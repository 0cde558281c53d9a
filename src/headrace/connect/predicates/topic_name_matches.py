"""TopicNameMatches: records of some topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.connect.config import Config, declare, key, not_empty
from headrace.connect.predicates.base import Predicate
from headrace.connect.predicates.patterns import java_pattern

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


class TopicNameMatches(Predicate):
    """Holds where the topic's whole name matches a regular expression.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> predicate = TopicNameMatches()
    >>> predicate.configure(TopicNameMatches.config.parse({"pattern": "orders-.*"}))
    >>> predicate.holds(SourceRecord(partition={}, offset={}, topic="orders-de"))
    True
    """

    config = declare(
        key(
            "pattern",
            str,
            "The regular expression, of Java's kind.",
            required=True,
            valid=not_empty(),
        ),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._pattern = java_pattern(config["pattern"])

    def holds(self, record: SourceRecord | SinkRecord) -> bool:
        """Return whether the topic matches."""
        return self._pattern.fullmatch(record.topic) is not None
