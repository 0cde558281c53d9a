"""What a log writes into records and reads out of them, many at a time."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.errors import ProtocolError
from headrace.protocol.codes import SysFlag
from headrace.protocol.columns import property_column
from headrace.protocol.groups import java_hash
from headrace.protocol.layout import (
    HEAD,
    WORTH_COLUMNS,
    as_bytes,
    at_each,
    locate,
    put_at_each,
    record_parts,
    slices,
)
from headrace.protocol.properties import TAGS, Host, decode_properties, pack_host

if TYPE_CHECKING:
    from headrace.protocol.frames import Buffer
    from headrace.protocol.records import Records


_HOST_FLAGS = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_PLACE = np.dtype([("queue_offset", ">i8"), ("position", ">i8")])
_PLACE_AT = 20
_STORED_AT = 56
_FLAGS_AT = 36
_FLAGS = struct.Struct(">i")
_PLACES = struct.Struct(">qq")
_STORED = struct.Struct(">q8s")
_TAGS_BEGIN = f"{TAGS}\x01".encode()


def stamp_records(
    records: Records,
    first_queue_offset: int,
    first_position: int,
    store_timestamp: int,
    store_host: Host,
) -> None:
    """Write in place what is known only when records are appended.

    Affects ``records.data``, which must be writable.  The records get consecutive queue
    offsets, and positions as if the first byte of the data lay at ``first_position``.

    Raises
    ------
    ProtocolError
        The store host is not an IPv4 address.
    """
    host = pack_host(store_host)
    if len(host) != 8:
        raise ProtocolError(f"store host {store_host[0]} does not fit: it must be IPv4")
    starts = records.starts
    if len(starts) < WORTH_COLUMNS and _stamp_few(
        records, first_queue_offset, first_position, store_timestamp, host
    ):
        return
    cells = as_bytes(records.data)
    places = np.empty(len(starts), _PLACE)
    places["queue_offset"] = np.arange(first_queue_offset, first_queue_offset + len(starts))
    places["position"] = starts + first_position
    put_at_each(cells, starts + _PLACE_AT, places)
    flags = at_each(cells, HEAD, starts)["sys_flag"]
    at = starts + _STORED_AT
    stamp = store_timestamp.to_bytes(8)
    if (flags & _HOST_FLAGS).any():
        at = at + np.where(flags & SysFlag.BORN_HOST_V6, 12, 0)
        wide = (flags & SysFlag.STORE_HOST_V6) != 0
        mapped = bytes(10) + b"\xff\xff" + host
        put_at_each(cells, at[wide], np.array(stamp + mapped, "V28"))
        at = at[~wide]
    put_at_each(cells, at, np.array(stamp + host, "V16"))


def _stamp_few(records: Records, queue_offset: int, position: int, stamp: int, host: bytes) -> bool:
    """Stamp records one by one; False, and some of them untouched, if one has wide hosts."""
    data = records.data
    for offset, start in enumerate(records.starts.tolist(), queue_offset):
        if _FLAGS.unpack_from(data, start + _FLAGS_AT)[0] & _HOST_FLAGS:
            return False
        _PLACES.pack_into(data, start + _PLACE_AT, offset, position + start)
        _STORED.pack_into(data, start + _STORED_AT, stamp, host)
    return True


def tag_hashes(records: Records) -> npt.NDArray[np.int32]:
    r"""Return Java hashes of the records' tags, 0 for those without a tag.

    >>> from headrace.protocol.records import encode_records
    >>> tag_hashes(encode_records("t", 0, [b"a", b"b"], [b"TAGS\x01TagA\x02", b""])).tolist()
    [2598919, 0]
    """
    hashes = np.zeros(len(records), np.int32)
    data = records.data if isinstance(records.data, bytearray) else bytes(records.data)
    # Searching the bytes once is far cheaper than finding every record's properties.
    if data.find(_TAGS_BEGIN) < 0:
        return hashes
    if len(records) < WORTH_COLUMNS:
        hashes[:] = _hashes_one_by_one(data, records.starts.tolist())
        return hashes
    layout = locate(data, records.starts)
    properties = slices(data, layout.property_starts, layout.property_ends)
    tags = property_column(properties, TAGS).dictionary_encode()
    words = [java_hash(str(word, "utf-8", "replace")) for word in tags.dictionary.to_pylist()]
    present = np.flatnonzero(tags.is_valid().to_numpy(zero_copy_only=False))
    hashes[present] = np.array(words, np.int32)[tags.indices.drop_null().to_numpy()]
    return hashes


def _hashes_one_by_one(data: Buffer, starts: Sequence[int]) -> list[int]:
    view = memoryview(data)
    hashes: list[int] = []
    ends = [*starts[1:], len(view)]
    for start, end in zip(starts, ends, strict=True):
        _, _, topic_end = record_parts(view[start:end], start)
        tag = decode_properties(view[start + topic_end + 2 : end]).get(TAGS)
        hashes.append(0 if tag is None else java_hash(tag))
    return hashes
