"""Tags of published messages, as :mod:`headrace.protocol.journal_tags` has them."""

from __future__ import annotations

from headrace.protocol.journal_tags import (
    TAG,
    FirstCopies,
    Tag,
    TagColumns,
    encode_tags,
    parse_tag,
    parse_tags,
)

__all__ = ["TAG", "FirstCopies", "Tag", "TagColumns", "encode_tags", "parse_tag", "parse_tags"]
