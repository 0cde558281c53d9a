"""TimestampRouter: a topic for each day, hour or month."""

from __future__ import annotations

from headrace.connect.config import Config, declare, key
from headrace.connect.transforms._date_format import DateFormat
from headrace.connect.transforms.base import Record, Transform
from headrace.errors import TransformError


class TimestampRouter(Transform):
    """Makes the topic's name out of the topic and the record's time.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = TimestampRouter()
    >>> transform.configure(TimestampRouter.config.parse({}))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", timestamp_ms=1_700_000_000_123)
    >>> transform.apply(record).topic
    't-20231114'
    """

    config = declare(
        key(
            "topic.format",
            str,
            "The new name; ${topic} and ${timestamp} stand for the old name and the time.",
            default="${topic}-${timestamp}",
            importance="high",
        ),
        key(
            "timestamp.format",
            str,
            "How the time is written, in letters of Java's SimpleDateFormat, in UTC.",
            default="yyyyMMdd",
            importance="high",
        ),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._topic_format: str = config["topic.format"]
        try:
            self._format = DateFormat(config["timestamp.format"])
        except ValueError as error:
            raise ValueError(f"timestamp.format: {error}.") from None

    def apply(self, record: Record) -> Record:
        """Rename the topic."""
        if record.timestamp_ms is None:
            raise TransformError(
                f"A record of the topic {record.topic} has no time to route it by.",
                hint="Let the source give its records a time.",
            )
        stamp = self._format.format(record.timestamp_ms)
        topic = self._topic_format.replace("${topic}", record.topic)
        return record.replace(topic=topic.replace("${timestamp}", stamp))
