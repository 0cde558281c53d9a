"""DropHeaders: leaves headers out."""

from __future__ import annotations

from headrace.connect.config import Config, declare, key, not_empty
from headrace.connect.transforms.base import Record, Transform


class DropHeaders(Transform):
    """Leaves out all headers of these names.

    Examples
    --------
    >>> from headrace.connect.records import Header, SourceRecord
    >>> transform = DropHeaders()
    >>> transform.configure(DropHeaders.config.parse({"headers": "trace"}))
    >>> headers = (Header("trace", "1"), Header("user", "Ann"))
    >>> record = SourceRecord(partition={}, offset={}, topic="t", headers=headers)
    >>> [header.key for header in transform.apply(record).headers]
    ['user']
    """

    config = declare(
        key("headers", list[str], "The names of the headers.", required=True, valid=not_empty()),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._names = frozenset(config["headers"])

    def apply(self, record: Record) -> Record:
        """Leave the headers out."""
        kept = tuple(one for one in record.headers if one.key not in self._names)
        return record if len(kept) == len(record.headers) else record.replace(headers=kept)
