"""RecordIsTombstone: records without a value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.connect.config import declare
from headrace.connect.predicates.base import Predicate

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord


class RecordIsTombstone(Predicate):
    """Holds where a record has no value: it deletes its key.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> RecordIsTombstone().holds(SourceRecord(partition={}, offset={}, topic="t", key=1))
    True
    """

    config = declare()

    def holds(self, record: SourceRecord | SinkRecord) -> bool:
        """Return whether there is no value."""
        return record.value is None
