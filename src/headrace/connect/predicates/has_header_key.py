"""HasHeaderKey: records with a header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.connect.config import Config, declare, key, not_empty
from headrace.connect.predicates.base import Predicate

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


class HasHeaderKey(Predicate):
    """Holds where a record has a header of this name.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> predicate = HasHeaderKey()
    >>> predicate.configure(HasHeaderKey.config.parse({"name": "trace"}))
    >>> predicate.holds(SourceRecord(partition={}, offset={}, topic="t"))
    False
    """

    config = declare(
        key("name", str, "The header's name.", required=True, valid=not_empty()),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        self._name: str = config["name"]

    def holds(self, record: SourceRecord | SinkRecord) -> bool:
        """Return whether the header is there."""
        return any(one.key == self._name for one in record.headers)
