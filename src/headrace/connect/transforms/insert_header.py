"""InsertHeader: a header with a fixed value."""

from __future__ import annotations

from headrace.connect.config import Config, declare, key
from headrace.connect.converters import SimpleHeaderConverter
from headrace.connect.records import Header
from headrace.connect.transforms.base import Record, Transform


class InsertHeader(Transform):
    """Adds a header to every record; its type is seen from the text, as of headers that are read.

    Examples
    --------
    >>> from headrace.connect.records import SourceRecord
    >>> transform = InsertHeader()
    >>> transform.configure(InsertHeader.config.parse({"header": "tries", "value.literal": "3"}))
    >>> transform.apply(SourceRecord(partition={}, offset={}, topic="t")).headers
    (Header(key='tries', value=3, schema=int8),)
    """

    config = declare(
        key("header", str, "The header's name.", required=True),
        key("value.literal", str, "Its value.", required=True),
    )

    def configure(self, config: Config) -> None:
        """Take the config."""
        name, text = config["header"], config["value.literal"]
        read = SimpleHeaderConverter.of({}).header_from_bytes("", name, text.strip().encode())
        self._header = Header(name, read.value, read.schema)

    def apply(self, record: Record) -> Record:
        """Add the header."""
        return record.replace(headers=(*record.headers, self._header))
