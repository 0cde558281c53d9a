"""Filter: drops records."""

from __future__ import annotations

from headrace.connect.config import declare
from headrace.connect.transforms.base import Record, Transform


class Filter(Transform):
    """Drops every record: a predicate says which ones come here.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> Filter().apply(SourceRecord(partition={}, offset={}, topic="t")) is None
    True
    """

    config = declare()

    def apply(self, record: Record) -> Record | None:
        """Drop the record."""
        del record
        return None
