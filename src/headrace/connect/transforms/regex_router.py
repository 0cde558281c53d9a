"""RegexRouter: another topic, made out of the topic's name."""

from __future__ import annotations

from headrace.connect.config import Config, declare, key
from headrace.connect.predicates.patterns import expanded, java_pattern
from headrace.connect.transforms.base import Record, Transform
from headrace.errors import TransformError


class RegexRouter(Transform):
    """Renames the topic where its whole name matches a regular expression.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = RegexRouter()
    >>> texts = {"regex": "db-(.*)", "replacement": "$1-changes"}
    >>> transform.configure(RegexRouter.config.parse(texts))
    >>> transform.apply(SourceRecord(partition={}, offset={}, topic="db-users")).topic
    'users-changes'
    """

    config = declare(
        key("regex", str, "The regular expression, of Java's kind.", required=True),
        key(
            "replacement",
            str,
            "The new name; $1 and ${name} stand for groups.",
            required=True,
        ),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._pattern = java_pattern(config["regex"])
        self._replacement: str = config["replacement"]

    def apply(self, record: Record) -> Record:
        """Rename the topic."""
        found = self._pattern.fullmatch(record.topic)
        if found is None:
            return record
        try:
            topic = expanded(self._replacement, found)
        except ValueError as error:
            raise TransformError(
                f"RegexRouter cannot rename the topic {record.topic}: {error}.",
                hint="Correct the transform's replacement.",
            ) from None
        return record.replace(topic=topic)
