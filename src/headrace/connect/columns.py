"""The columns in which records travel between a task and its topics."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

__all__ = ["PACKED", "PROPERTIES", "SINK_SCHEMA", "SOURCE_SCHEMA"]

#: The type of a record's properties.
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

#: What a source host gives: bytes, after converters and transforms.
SOURCE_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", PROPERTIES),
        ("timestamp", pa.int64()),
    ]
)

#: A column of a sink's rows, there where one of them has it: the system flag of a message whose
#: value is still compressed, as it cannot be unpacked.  Null for all others.
PACKED: Final = pa.field("packed", pa.int32())

#: What a sink host takes: messages as they stand in their topics.
SINK_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("properties", PROPERTIES),
        ("timestamp", pa.int64()),
    ]
)
