"""SetNull: nothing in place of the key or value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.connect.config import declare
from headrace.connect.transforms.base import SidedTransform, both_sides

if TYPE_CHECKING:
    from headrace.connect.records import SinkRecord, SourceRecord
    from headrace.connect.schema import Schema


class SetNull(SidedTransform):
    """Puts ``None`` in the place of the key or value, and takes its schema away.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> record = SourceRecord(partition={}, offset={}, topic="t", key=1, value=2)
    >>> SetNullValue().apply(record).value is None
    True
    """

    config = declare()

    def change(
        self, record: SourceRecord | SinkRecord, schema: Schema | None, value: Any
    ) -> tuple[Schema | None, Any]:
        """Return nothing."""
        del record, schema, value
        return None, None


SetNullKey, SetNullValue = both_sides(SetNull)
