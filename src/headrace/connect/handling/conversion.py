"""The converters of a task: key, value and headers together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.connect.handling.plain import PlainConverter
from headrace.connect.records import Header

if TYPE_CHECKING:
    from headrace.connect.converters import Converter, HeaderConverter

__all__ = ["Converters"]


@dataclass(frozen=True, slots=True)
class Converters:
    """What turns records into messages, and messages into records."""

    key: Converter = field(default_factory=lambda: PlainConverter.of({}, is_key=True))
    value: Converter = field(default_factory=lambda: PlainConverter.of({}))
    #: ``None``: headers are texts, as the properties of messages are.
    header: HeaderConverter | None = None

    def properties_of(self, topic: str, headers: Sequence[Header]) -> list[tuple[str, str]]:
        """Write headers as properties; of several with one name the last one counts."""
        converter = self.header or _PLAIN
        written = {
            one.key: converter.header_to_bytes(topic, one.key, one.schema, one.value)
            for one in headers
        }
        return [(name, body.decode()) for name, body in written.items() if body is not None]

    def headers_of(self, topic: str, properties: Mapping[str, str]) -> tuple[Header, ...]:
        """Read properties as headers."""
        if self.header is None:
            return tuple(Header(*pair) for pair in properties.items())
        read = (
            (name, self.header.header_from_bytes(topic, name, text.encode()))
            for name, text in properties.items()
        )
        return tuple(Header(name, one.value, one.schema) for name, one in read)


_PLAIN = PlainConverter.of({})
