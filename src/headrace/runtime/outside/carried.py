"""What of a message goes outside beside its body: its key, and its properties."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headrace.keys import EXACT_KEY, KEYS, keys_from_columns
from headrace.protocol.property_columns import property_column
from headrace.runtime.sources.messages import carried_properties

__all__ = ["key_bytes", "property_pairs"]

_PAIRS: Final = pa.map_(pa.string(), pa.string())


def property_pairs(raw: pa.BinaryArray) -> pa.MapArray:
    r"""Read the properties that go along with messages.

    >>> property_pairs(pa.array([b"TAGS\x01red\x02", b""], pa.binary())).to_pylist()
    [[('TAGS', 'red')], None]
    """
    if not pc.any(pc.greater(pc.binary_length(raw), 0)).as_py():
        return pa.nulls(len(raw), _PAIRS)
    found = map(carried_properties, raw.to_pylist())
    return pa.array([None if one is None else list(one.items()) for one in found], _PAIRS)


def key_bytes(raw: pa.BinaryArray) -> pa.BinaryArray:
    r"""Read the keys of messages out of their properties, as bytes.

    >>> key_bytes(pa.array([b"KEYS\x01k\x02", b""], pa.binary())).to_pylist()
    [b'k', None]
    """
    keys, exact = property_column(raw, KEYS), property_column(raw, EXACT_KEY)
    if exact.null_count == len(exact):
        return keys
    return pa.array(list(map(_as_bytes, keys_from_columns(keys, exact))), pa.binary())


def _as_bytes(key: Any) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    return key.encode() if isinstance(key, str) else orjson.dumps(key, default=str)
