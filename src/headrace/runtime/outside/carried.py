"""What of a message goes outside beside its body: its key, and its properties."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pyarrow as pa

from headrace.keys import EXACT_KEY, KEYS, keys_from_columns
from headrace.protocol.property_columns import property_column, rows_with_others
from headrace.runtime.sources.messages import NOT_CARRIED, carried_properties

__all__ = ["key_bytes", "property_pairs"]

_NOT_CARRIED: Final = frozenset(name.encode() for name in NOT_CARRIED)
_PAIRS: Final = pa.map_(pa.string(), pa.string())


def property_pairs(raw: pa.BinaryArray) -> pa.MapArray:
    r"""Read the properties that go along with messages.

    >>> property_pairs(pa.array([b"TAGS\x01red\x02", b""], pa.binary())).to_pylist()
    [[('TAGS', 'red')], None]
    """
    rows = rows_with_others(raw, _NOT_CARRIED)
    if not len(rows):
        return pa.nulls(len(raw), _PAIRS)
    pairs: list[list[tuple[str, str]] | None] = [None] * len(raw)
    for row in rows.tolist():
        found = carried_properties(raw[row].as_py())
        pairs[row] = None if found is None else list(found.items())
    return pa.array(pairs, _PAIRS)


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
